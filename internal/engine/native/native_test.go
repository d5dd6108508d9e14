package native

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/apparmor"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/supervisor"
)

// ruled returns an engine that New did not create.
func ruled(e *Engine, rules Rules) *Engine {
	e.SetRules(rules)
	return e
}

// A migration for the kernel's sake delays all that joins a cgroup without one.
func TestKernelIsPreparedForMigrationsAlone(t *testing.T) {
	for driver, migrates := range map[string]bool{podcgroup.Systemd: true, podcgroup.Cgroupfs: false} {
		if got := initMigrates(driver, &Rules{}); got != migrates {
			t.Errorf("%s: %t", driver, got)
		}
		if !initMigrates(driver, &Rules{NoOwnInit: true}) {
			t.Errorf("%s: libcontainer migrates its init", driver)
		}
	}
}

// If this host cannot enforce a requested filter, the sandbox is refused, and not only its first
// container. The sandbox may have no process to confine.
func TestSandboxSeccompIsCheckedWhereThereIsNone(t *testing.T) {
	e := ruled(&Engine{apparmor: apparmor.Find("t"), seccomp: seccomp.NewLoader(ocispec.Host{}, &probe.Pool{Timeout: time.Second, Limit: 1})}, Rules{})
	for name, c := range map[string]struct {
		profile    *runtimeapi.SecurityProfile
		privileged bool
		refused    bool
	}{
		"none":                      {nil, false, false},
		"unconfined":                {&runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, false, false},
		"the default":               {&runtimeapi.SecurityProfile{}, false, true},
		"the default of privileged": {&runtimeapi.SecurityProfile{}, true, false},
		"localhost":                 {&runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p"}, false, true},
		"localhost of privileged":   {&runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p"}, true, true},
	} {
		err := e.checkDemands(t.Context(), &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Seccomp: c.profile, Privileged: c.privileged},
		}}, nil)
		if (err != nil) != c.refused || c.refused && (!errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "linux.security_context.seccomp")) {
			t.Errorf("%s: %v; refused: %v", name, err, c.refused)
		}
	}
}

func TestRemoveFilesOnlyOfTheSandbox(t *testing.T) {
	dir := t.TempDir()
	keep, own := filepath.Join(dir, "other"), filepath.Join(dir, "s1")
	if err := errors.Join(os.Mkdir(keep, 0o755), os.Mkdir(own, 0o755)); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	for _, target := range []string{keep, own} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		err := removeFiles("s1", link)
		if target == keep && err == nil {
			t.Error("a directory that is not named after the sandbox was removed")
		}
		if target == own && err != nil {
			t.Error(err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(keep); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(own); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the sandbox's directory is left: %v", err)
	}
	if err := removeFiles("s1", link); err != nil {
		t.Errorf("nothing to remove: %v", err)
	}
}

func TestExitOf(t *testing.T) {
	for _, test := range []struct {
		exit   supervisor.Exit
		code   int32
		reason string
	}{
		{supervisor.Exit{Code: 3}, 3, ""},
		{supervisor.Exit{Code: 255, Unknown: true}, 255, "Unknown"},
		{supervisor.Exit{Code: 2, StartFailed: true}, 128, "StartError"},
		{supervisor.Exit{Code: 255, Unknown: true, StartFailed: true}, 255, "Unknown"},
	} {
		if got := exitOf(test.exit); got.Code != test.code || got.Reason != test.reason {
			t.Errorf("%+v: %d %q, want %d %q", test.exit, got.Code, got.Reason, test.code, test.reason)
		}
	}
}

// The configuration leaves the paths that images declare as volumes in the root filesystem.
func TestImageVolumesAreTurnedOff(t *testing.T) {
	e := ruled(&Engine{}, Rules{NoImageVolumes: true})
	c := &creation{containerSpec: &containerSpec{ContainerSpec: &engine.ContainerSpec{
		ImageConfig: imagespec.ImageConfig{Volumes: map[string]struct{}{"/data": {}, "/file": {}}},
		Config:      &runtimeapi.ContainerConfig{}, SandboxSpec: &engine.SandboxSpec{},
		Stage: func(name, _ string) { t.Errorf("stage %q", name) },
	}}}
	if err := e.prepareImageVolumes(t.Context(), c); err != nil || len(c.in.ImageVolumes) != 0 {
		t.Errorf("volumes %+v, %v", c.in.ImageVolumes, err)
	}
}

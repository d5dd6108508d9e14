package seccomp

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/probe"
)

// If only the configuration requests a profile, the refusal names the configuration.
func TestDefaultSeccompIsRefusedByItsKey(t *testing.T) {
	l := NewLoader(ocispec.Host{Seccomp: true}, &probe.Pool{Timeout: time.Second, Limit: 1})
	defaults := &ocispec.Defaults{Seccomp: request.SeccompProfile{Path: "/no/such.json"}}
	silent := &runtimeapi.ContainerConfig{}
	asks := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/no/such.json"},
	}}}
	for config, byKey := range map[*runtimeapi.ContainerConfig]bool{silent: true, asks: false} {
		_, err := l.Container(t.Context(), config, &Rules{}, defaults)
		if !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "defaults.seccomp") != byKey {
			t.Errorf("%v; named by its key: want %v", err, byKey)
		}
	}
}

// The files with which an operator replaces the runtime's default profile, and the profile of
// privileged containers, which is unconfined by default.
func TestSeccompOfTheOperator(t *testing.T) {
	const filter = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod"],"action":"SCMP_ACT_ERRNO"}]}`
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, []byte(filter), 0o600); err != nil {
		t.Fatal(err)
	}
	runtimeDefault := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	unconfined := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	type configured struct {
		Rules
		byDefault request.SeccompProfile
	}
	rules := configured{Rules: Rules{Default: file}}
	privileged := configured{Rules: Rules{Privileged: file}}
	absent := configured{Rules: Rules{Default: "/no/such.json", Privileged: "/no/other.json"}}
	for name, c := range map[string]struct {
		rules      configured
		profile    *runtimeapi.SecurityProfile
		privileged bool
		// denied is the only system call that the filter denies, "" for no filter, "many" for the
		// built-in filter, or the key that an error names.
		denied, fault string
	}{
		"default":                       {rules, runtimeDefault, false, "chmod", ""},
		"by a default":                  {configured{rules.Rules, request.SeccompProfile{Default: true}}, nil, false, "chmod", ""},
		"unconfined":                    {rules, unconfined, false, "", ""},
		"nothing asked":                 {rules, nil, false, "", ""},
		"privileged":                    {rules, runtimeDefault, true, "", ""},
		"default, privileged's set":     {privileged, runtimeDefault, false, "many", ""},
		"privileged's":                  {privileged, nil, true, "chmod", ""},
		"privileged's over unconfined":  {privileged, unconfined, true, "chmod", ""},
		"a default that is absent":      {absent, runtimeDefault, false, "", "runtime.seccomp_profile"},
		"a privileged that is absent":   {absent, nil, true, "", "runtime.privileged_seccomp_profile"},
		"one absent that is not needed": {absent, unconfined, false, "", ""},
	} {
		l := NewLoader(ocispec.Host{Seccomp: true}, &probe.Pool{Timeout: time.Minute, Limit: 1})
		got, err := l.Container(t.Context(), &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{Seccomp: c.profile, Privileged: c.privileged},
		}}, &c.rules.Rules, &ocispec.Defaults{Seccomp: c.rules.byDefault})
		if c.fault != "" {
			if !errors.Is(err, errs.Invalid) || !strings.HasPrefix(err.Error(), c.fault+" of the configuration") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		denied := ""
		if got != nil {
			denied = "many"
			if len(got.Syscalls) == 1 {
				denied = got.Syscalls[0].Names[0]
			}
		}
		if err != nil || denied != c.denied {
			t.Errorf("%s: denies %q, %v; want %q", name, denied, err, c.denied)
		}
	}
	// A sandbox that requests the profile is refused, before any container.
	err := NewLoader(ocispec.Host{Seccomp: true}, &probe.Pool{Timeout: time.Minute, Limit: 1}).CheckSandbox(t.Context(), &runtimeapi.PodSandboxConfig{
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Seccomp: runtimeDefault}},
	}, &absent.Rules)
	if err == nil || !strings.Contains(err.Error(), "runtime.seccomp_profile") {
		t.Errorf("a sandbox: %v", err)
	}
}

func TestSeccompProfiles(t *testing.T) {
	l := NewLoader(ocispec.Host{Seccomp: true, Capabilities: request.AllCapabilities()}, &probe.Pool{Timeout: time.Second, Limit: 8})
	of := func(config *runtimeapi.ContainerConfig) (*specs.LinuxSeccomp, error) {
		return l.Container(t.Context(), config, &Rules{}, &ocispec.Defaults{})
	}
	config := func(kind runtimeapi.SecurityProfile_ProfileType, ref string, add ...string) *runtimeapi.ContainerConfig {
		return &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Seccomp:      &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref},
			Capabilities: &runtimeapi.Capability{AddCapabilities: add},
		}}}
	}
	names := func(profile *specs.LinuxSeccomp, call string) (n int) {
		for _, rule := range profile.Syscalls {
			if slices.Contains(rule.Names, call) {
				n++
			}
		}
		return n
	}
	plain, err := of(config(runtimeapi.SecurityProfile_RuntimeDefault, ""))
	if err != nil || plain == nil {
		t.Fatalf("the default: %v, %v", plain, err)
	}
	if again, _ := of(config(runtimeapi.SecurityProfile_RuntimeDefault, "")); again != plain {
		t.Error("the default profile of one set of capabilities was made twice")
	}
	admin, err := of(config(runtimeapi.SecurityProfile_RuntimeDefault, "", "SYS_ADMIN"))
	if err != nil || names(admin, "mount") == 0 || names(plain, "mount") != 0 {
		t.Errorf("mount must be allowed with SYS_ADMIN only: %v", err)
	}

	dir := t.TempDir()
	good, bad, directory := filepath.Join(dir, "good"), filepath.Join(dir, "bad"), dir
	if err := errors.Join(
		os.WriteFile(good, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO"}]}`), 0o600),
		os.WriteFile(bad, []byte(`{`), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	own, err := of(config(runtimeapi.SecurityProfile_Localhost, good))
	if err != nil || len(own.Syscalls) != 1 || own.Syscalls[0].Names[0] != "mkdir" {
		t.Errorf("a profile on the node: %+v, %v", own, err)
	}
	for _, path := range []string{bad, directory, filepath.Join(dir, "absent")} {
		if _, err := of(config(runtimeapi.SecurityProfile_Localhost, path)); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, want kind Invalid", path, err)
		}
	}
	if none, err := of(config(runtimeapi.SecurityProfile_Unconfined, "")); none != nil || err != nil {
		t.Errorf("unconfined: %v, %v", none, err)
	}
}

package native

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/probe"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/supervisor"
)

func TestSandboxFiles(t *testing.T) {
	dir := t.TempDir()
	files := sandboxFiles{dir: dir, hostname: "web", dns: &runtimeapi.DNSConfig{
		Servers: []string{"10.0.0.10", "fd00::a"}, Searches: []string{"a.b", "c"}, Options: []string{"ndots:5", "edns0"},
	}}
	if err := files.write([]netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"hostname":    "web\n",
		"resolv.conf": "search a.b c\noptions ndots:5 edns0\nnameserver 10.0.0.10\nnameserver fd00::a\n",
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n10.1.2.3\tweb\nfd00::3\tweb\n",
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	// Without a demand both are the host's own.
	files = sandboxFiles{dir: dir, hostname: "web", hostNetwork: true}
	if err := files.write(nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"resolv.conf", "hosts"} {
		want, _ := os.ReadFile(filepath.Join("/etc", name))
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v; want the host's", name, got, err)
		}
	}
}

func TestCgroupParents(t *testing.T) {
	for _, c := range []struct {
		driver, asked, want string
		own                 bool
		kind                error
	}{
		{driverCgroupfs, "/kubepods/podx", "/kubepods/podx", false, nil},
		{driverCgroupfs, "kubepods/podx/", "/kubepods/podx", false, nil},
		{driverCgroupfs, "", "/berth-t/s1", true, nil},
		{driverCgroupfs, "/kubepods.slice/kubepods-podx.slice", "", false, errs.Invalid},
		{driverSystemd, "/kubepods.slice/kubepods-podx.slice", "kubepods-podx.slice", false, nil},
		{driverSystemd, "", "berth_t-pods1.slice", true, nil},
		{driverSystemd, "/kubepods/podx", "", false, errs.Invalid},
	} {
		e := &Engine{cfg: Config{CgroupDriver: c.driver, CgroupPrefix: "cri-containerd", DefaultParent: "/berth-t"}}
		if c.driver == driverSystemd {
			e.cfg.DefaultParent = "berth_t.slice"
		}
		spec := &engine.SandboxSpec{ID: "s1", Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: c.asked}}}
		got, own, err := e.cgroupParent(spec)
		if got != c.want || own != c.own || !errors.Is(err, c.kind) {
			t.Errorf("%s, %q: %q, %v, %v; want %q, %v, kind %v", c.driver, c.asked, got, own, err, c.want, c.own, c.kind)
		}
	}
	e := &Engine{cfg: Config{CgroupDriver: driverSystemd, CgroupPrefix: "cri-containerd"}}
	if got := e.cgroupsPath("a.slice", "c1"); got != "a.slice:cri-containerd:c1" {
		t.Errorf("systemd: %q", got)
	}
}

func TestMountSources(t *testing.T) {
	dir := t.TempDir()
	e := &Engine{probes: probe.New(time.Second, 8)}
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(real, 0o755), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing", "deep")
	sources, err := e.sourcesOf(context.Background(), []*runtimeapi.Mount{{HostPath: link}, {HostPath: missing}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if sources[link].Path != real {
		t.Errorf("a link: %+v, want %s", sources[link], real)
	}
	if info, err := os.Stat(missing); err != nil || !info.IsDir() {
		t.Errorf("a missing source was not made: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = e.sourcesOf(context.Background(), []*runtimeapi.Mount{{HostPath: filepath.Join(file, "below")}}, "")
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), file) {
		t.Errorf("a source below a file: %v, want kind Invalid and the path", err)
	}
}

func TestDevices(t *testing.T) {
	e := &Engine{probes: probe.New(time.Second, 8)}
	config := func(host, container string) *runtimeapi.ContainerConfig {
		return &runtimeapi.ContainerConfig{Devices: []*runtimeapi.Device{{HostPath: host, ContainerPath: container, Permissions: "rw"}}}
	}
	got, err := e.devicesOf(context.Background(), config("/dev/null", "/dev/nothing"))
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if d := got[0]; d.Path != "/dev/nothing" || d.Type != "c" || d.Major != 1 || d.Minor != 3 || d.Access != "rw" {
		t.Errorf("/dev/null: %+v", d)
	}
	for _, bad := range []string{"/etc/passwd", "/dev/nope"} {
		if _, err := e.devicesOf(context.Background(), config(bad, "")); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, want kind Invalid", bad, err)
		}
	}
	all, err := nodesBelow("/dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if strings.HasPrefix(d.Source, "/dev/pts/") || d.Source == "/dev/console" {
			t.Errorf("%s is a container's own", d.Source)
		}
	}
}

// TestDevicesAskedForAtOnce: who asks for the same node at the same time shares the look
// at it, and nothing else.
func TestDevicesAskedForAtOnce(t *testing.T) {
	e := &Engine{probes: probe.New(time.Second, 8), cfg: Config{Devices: DeviceRules{OwnedByUser: true}}}
	var wg sync.WaitGroup
	for i := range 400 {
		wg.Go(func() {
			to, access := fmt.Sprint("/dev/mine", i), []string{"r", "rwm"}[i%2]
			got, err := e.devicesOf(context.Background(), &runtimeapi.ContainerConfig{
				Devices: []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: to, Permissions: access}},
				Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					RunAsUser: &runtimeapi.Int64Value{Value: int64(i)},
				}},
			})
			if err != nil || len(got) != 1 || got[0].Path != to || got[0].Access != access || got[0].UID != uint32(i) {
				t.Errorf("asked for %s %s of %d: %+v, %v", to, access, i, got, err)
			}
		})
	}
	wg.Wait()
}

func TestSeccompProfiles(t *testing.T) {
	e := &Engine{probes: probe.New(time.Second, 8), host: ocispec.Host{Seccomp: true, Capabilities: ocispec.CapabilityNames(1<<41 - 1)}}
	config := func(kind runtimeapi.SecurityProfile_ProfileType, ref string, add ...string) *runtimeapi.ContainerConfig {
		return &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Seccomp:      &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref},
			Capabilities: &runtimeapi.Capability{AddCapabilities: add},
		}}}
	}
	ctx := context.Background()
	names := func(profile *specs.LinuxSeccomp, call string) (n int) {
		for _, rule := range profile.Syscalls {
			if slices.Contains(rule.Names, call) {
				n++
			}
		}
		return n
	}
	plain, err := e.seccompOf(ctx, config(runtimeapi.SecurityProfile_RuntimeDefault, ""))
	if err != nil || plain == nil {
		t.Fatalf("the default: %v, %v", plain, err)
	}
	if again, _ := e.seccompOf(ctx, config(runtimeapi.SecurityProfile_RuntimeDefault, "")); again != plain {
		t.Error("the default profile of one set of capabilities was made twice")
	}
	admin, err := e.seccompOf(ctx, config(runtimeapi.SecurityProfile_RuntimeDefault, "", "SYS_ADMIN"))
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
	own, err := e.seccompOf(ctx, config(runtimeapi.SecurityProfile_Localhost, good))
	if err != nil || len(own.Syscalls) != 1 || own.Syscalls[0].Names[0] != "mkdir" {
		t.Errorf("a profile on the node: %+v, %v", own, err)
	}
	for _, path := range []string{bad, directory, filepath.Join(dir, "absent")} {
		if _, err := e.seccompOf(ctx, config(runtimeapi.SecurityProfile_Localhost, path)); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, want kind Invalid", path, err)
		}
	}
	if none, err := e.seccompOf(ctx, config(runtimeapi.SecurityProfile_Unconfined, "")); none != nil || err != nil {
		t.Errorf("unconfined: %v, %v", none, err)
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

package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/berthrun/berth/internal/engine/native/apparmor"
	"github.com/berthrun/berth/internal/engine/native/hostpath"
	"github.com/berthrun/berth/internal/engine/native/probe"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
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

// ruled is an engine that New did not make.
func ruled(e *Engine, rules Rules) *Engine {
	e.SetRules(rules)
	return e
}

// A demand for a filter that this host cannot enforce fails the sandbox, which may have
// no process to confine, and not its first container.
func TestSandboxSeccompIsCheckedWhereThereIsNone(t *testing.T) {
	e := ruled(&Engine{apparmor: apparmor.Find("t"), probes: probe.New(time.Second, 1)}, Rules{})
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
		}})
		if (err != nil) != c.refused || c.refused && (!errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "linux.security_context.seccomp")) {
			t.Errorf("%s: %v; refused: %v", name, err, c.refused)
		}
	}
}

// A profile that nobody asked for but the configuration is refused in its name.
func TestDefaultSeccompIsRefusedByItsKey(t *testing.T) {
	e := ruled(&Engine{host: ocispec.Host{Seccomp: true}, probes: probe.New(time.Second, 1)}, Rules{
		Defaults: ocispec.Defaults{Seccomp: request.SeccompProfile{Path: "/no/such.json"}},
	})
	silent := &runtimeapi.ContainerConfig{}
	asks := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/no/such.json"},
	}}}
	for config, byKey := range map[*runtimeapi.ContainerConfig]bool{silent: true, asks: false} {
		_, err := e.seccompOf(t.Context(), config)
		if !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "defaults.seccomp") != byKey {
			t.Errorf("%v; named by its key: want %v", err, byKey)
		}
	}
}

// What an operator has put in the place of the runtime's default, and of what privileged
// containers have, which is none.
func TestSeccompOfTheOperator(t *testing.T) {
	const filter = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod"],"action":"SCMP_ACT_ERRNO"}]}`
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, []byte(filter), 0o600); err != nil {
		t.Fatal(err)
	}
	runtimeDefault := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	unconfined := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	rules := Rules{Seccomp: SeccompRules{Default: file}}
	privileged := Rules{Seccomp: SeccompRules{Privileged: file}}
	absent := Rules{Seccomp: SeccompRules{Default: "/no/such.json", Privileged: "/no/other.json"}}
	for name, c := range map[string]struct {
		rules      Rules
		profile    *runtimeapi.SecurityProfile
		privileged bool
		// denied is the one system call that the filter denies, "" for no filter; "many"
		// stands for the built-in one; or the key that an error names.
		denied, fault string
	}{
		"default":                       {rules, runtimeDefault, false, "chmod", ""},
		"by a default":                  {Rules{Seccomp: rules.Seccomp, Defaults: ocispec.Defaults{Seccomp: request.SeccompProfile{Default: true}}}, nil, false, "chmod", ""},
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
		e := ruled(&Engine{host: ocispec.Host{Seccomp: true}, probes: probe.New(time.Minute, 1)}, c.rules)
		got, err := e.seccompOf(t.Context(), &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{Seccomp: c.profile, Privileged: c.privileged},
		}})
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
	// A sandbox that asks for it is refused before its containers are.
	e := ruled(&Engine{host: ocispec.Host{Seccomp: true}, apparmor: apparmor.Find("t"), probes: probe.New(time.Minute, 1)}, absent)
	err := e.checkDemands(t.Context(), &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Seccomp: runtimeDefault},
	}})
	if err == nil || !strings.Contains(err.Error(), "runtime.seccomp_profile") {
		t.Errorf("a sandbox: %v", err)
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
	e := ruled(&Engine{probes: probe.New(time.Second, 8)}, Rules{})
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(real, 0o755), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(link, "missing", "deep")
	sources, toMake, err := e.sourcesOf(context.Background(), []*runtimeapi.Mount{{HostPath: link}, {HostPath: missing}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if sources[link].Path != real {
		t.Errorf("a link: %+v, want %s", sources[link], real)
	}
	later := filepath.Join(real, "missing", "deep")
	if sources[missing].Path != later || len(toMake) != 1 || toMake[0] != (hostpath.Missing{Field: "config.mounts[1].host_path", Path: later}) {
		t.Errorf("a missing source: %+v, to make %+v", sources[missing], toMake)
	}
	if _, err := os.Stat(filepath.Join(real, "missing")); err == nil {
		t.Error("a source was made while the container can still be refused")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = e.sourcesOf(context.Background(), []*runtimeapi.Mount{{HostPath: filepath.Join(file, "below")}}, "")
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), file) || fieldtest.Named(err.Error()) != "config.mounts[0].host_path" {
		t.Errorf("a source below a file: %v, want kind Invalid and the path", err)
	}
}

func TestDevices(t *testing.T) {
	e := ruled(&Engine{probes: probe.New(time.Second, 8)}, Rules{})
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
	e := ruled(&Engine{probes: probe.New(time.Second, 8)}, Rules{Devices: DeviceRules{OwnedByUser: true}})
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
	e := ruled(&Engine{probes: probe.New(time.Second, 8), host: ocispec.Host{Seccomp: true, Capabilities: request.CapabilityNames(1<<41 - 1)}}, Rules{})
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

// Devices of every container give way to those that a container asks for in their place.
func TestAddedDevices(t *testing.T) {
	e := ruled(&Engine{probes: probe.New(time.Second, 8)}, Rules{Devices: DeviceRules{Added: []*runtimeapi.Device{
		{HostPath: "/dev/zero", ContainerPath: "/dev/a", Permissions: "r"}, {HostPath: "/dev/zero", ContainerPath: "/dev/b", Permissions: "r"},
	}}})
	got, err := e.devicesOf(t.Context(), &runtimeapi.ContainerConfig{Devices: []*runtimeapi.Device{{HostPath: "/dev/full", ContainerPath: "/dev/b", Permissions: "rw"}}})
	if err != nil || len(got) != 2 || got[0].Path != "/dev/a" || got[0].Minor != 5 || got[1].Path != "/dev/b" || got[1].Minor != 7 || got[1].Access != "rw" {
		t.Errorf("%+v, %v", got, err)
	}
	e.SetRules(Rules{Devices: DeviceRules{Added: []*runtimeapi.Device{{HostPath: "/dev/no-such-device", Permissions: "r"}}}})
	if got, err := e.devicesOf(t.Context(), &runtimeapi.ContainerConfig{}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "/dev/no-such-device") {
		t.Errorf("one that is missing: %v, %v", got, err)
	}
}

// A request hides a default, however it spells the name.
func TestDefaultSysctls(t *testing.T) {
	config := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{Sysctls: map[string]string{"net/core/somaxconn": "2"}}}
	got, err := netSysctls(config, map[string]string{"net.core.somaxconn": "1", "net.ipv4.ip_unprivileged_port_start": "80", "kernel.shmmax": "5"})
	want := map[string]string{"net/core/somaxconn": "2", "net/ipv4/ip_unprivileged_port_start": "80", pingGroups: (*request.UserNamespace)(nil).AllGroups()}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestAbsentMountSources(t *testing.T) {
	dir := t.TempDir()
	made, refused := filepath.Join(dir, "made"), filepath.Join(dir, "refused")
	e := ruled(&Engine{probes: probe.New(time.Second, 8)}, Rules{AbsentSources: []string{refused}})
	for from, want := range map[string]error{made: nil, refused + "/": errs.Invalid} {
		_, missing, err := e.sourcesOf(t.Context(), []*runtimeapi.Mount{{HostPath: from, ContainerPath: "/x"}}, "")
		if !errors.Is(err, want) || (want == nil) != (len(missing) == 1) {
			t.Errorf("%s: %v, to make %v", from, err, missing)
		}
	}
}

package translate

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

func factsWith(version string) Facts {
	return Facts{api.Facts{APIVersion: version, CgroupDriver: "cgroupfs", SwapLimit: true, Seccomp: true, LoggingDriver: "json-file"}}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		has, wanted string
		want        bool
	}{
		{"1.44", "1.44", true},
		{"1.44.0", "1.44", true},
		{"1.5", "1.44", false},
		{"2.0", "1.44", true},
		{"1.100", "1.44", true},
		{"1.43", "1.44", false},
		{"", "1.44", false},
		{"dev", "1.44", false},
	} {
		facts := factsWith(c.has)
		if got := facts.has(c.wanted); got != c.want {
			t.Errorf("API %q has %q: %v, want %v", c.has, c.wanted, got, c.want)
		}
	}
}

// input is a container that requests nothing special.
func input(change func(*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig)) ContainerInput {
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}},
		},
	}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "ns", Uid: "uid"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}}},
	}
	if change != nil {
		change(config, sandbox)
	}
	return ContainerInput{
		Spec: &engine.ContainerSpec{
			Config: config, SandboxSpec: &engine.SandboxSpec{Config: sandbox}, ImageID: "sha256:1",
			ImageConfig: imagespec.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"arg"}, Env: []string{"PATH=/bin"}},
		},
		Name: "k8s_app", SandboxID: "pause1", CgroupParent: "/pods/1", Facts: factsWith("1.41"),
	}
}

func TestContainerJoinsItsPod(t *testing.T) {
	got, err := Container(input(nil))
	if err != nil {
		t.Fatal(err)
	}
	host := got.HostConfig
	if host.NetworkMode != "container:pause1" || host.IpcMode != "container:pause1" || host.PidMode != "" || host.Resources.CgroupParent != "/pods/1" {
		t.Errorf("network %q, ipc %q, pid %q, cgroup %q", host.NetworkMode, host.IpcMode, host.PidMode, host.Resources.CgroupParent)
	}
	if diff := cmp.Diff([]string{"/entry", "arg"}, []string(got.Config.Entrypoint)); diff != "" || len(got.Config.Cmd) != 0 {
		t.Errorf("entrypoint %s, cmd %v", diff, got.Config.Cmd)
	}
	if host.RestartPolicy.Name != "no" || !slices.Equal(got.Config.Healthcheck.Test, []string{"NONE"}) {
		t.Errorf("restart %q, health check %v: both are the kubelet's", host.RestartPolicy.Name, got.Config.Healthcheck)
	}
	if !slices.Contains(host.SecurityOpt, "seccomp=unconfined") || !slices.Equal(host.CapDrop, []string{"ALL"}) || !slices.Contains(host.CapAdd, "CAP_CHOWN") {
		t.Errorf("security %v, capabilities -%v +%v", host.SecurityOpt, host.CapDrop, host.CapAdd)
	}
	if host.MaskedPaths == nil || host.ReadonlyPaths == nil {
		t.Error("the engine's own masked and read-only paths are used")
	}
}

// TestPathsOfAPrivilegedContainer: the kubelet names masked and read-only paths for privileged
// containers, too, and kube-proxy writes below /proc/sys.
func TestPathsOfAPrivilegedContainer(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		in := input(func(c *runtimeapi.ContainerConfig, p *runtimeapi.PodSandboxConfig) {
			p.Linux.SecurityContext.Privileged = true
			c.Linux.SecurityContext.Privileged = privileged
			c.Linux.SecurityContext.MaskedPaths, c.Linux.SecurityContext.ReadonlyPaths = []string{"/proc/keys"}, []string{"/proc/sys"}
		})
		got, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		host, want := got.HostConfig, 1
		if privileged {
			want = 0
		}
		if len(host.MaskedPaths) != want || len(host.ReadonlyPaths) != want || host.MaskedPaths == nil || host.ReadonlyPaths == nil {
			t.Errorf("privileged %t: masked %#v, read-only %#v", privileged, host.MaskedPaths, host.ReadonlyPaths)
		}
	}
}

func TestNamespacesOfTheHostAndOfOthers(t *testing.T) {
	in := input(func(c *runtimeapi.ContainerConfig, p *runtimeapi.PodSandboxConfig) {
		p.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		p.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
	})
	in.TargetID = "target1"
	got, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	if h := got.HostConfig; h.NetworkMode != "host" || h.IpcMode != "host" || h.UTSMode != "host" || h.PidMode != "container:target1" {
		t.Errorf("network %q, ipc %q, uts %q, pid %q", h.NetworkMode, h.IpcMode, h.UTSMode, h.PidMode)
	}
}

func TestAllCapabilitiesAreTheEngines(t *testing.T) {
	got, err := Container(input(func(c *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"NET_RAW"}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if h := got.HostConfig; !slices.Equal(h.CapAdd, []string{"ALL"}) || !slices.Equal(h.CapDrop, []string{"CAP_NET_RAW"}) {
		t.Errorf("capabilities +%v -%v", h.CapAdd, h.CapDrop)
	}
}

// TestRefusals: what the engine cannot do is refused with the field's name, and passes where
// it can.
func TestRefusals(t *testing.T) {
	mount := func(m *runtimeapi.Mount) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) { c.Mounts = []*runtimeapi.Mount{m} }
	}
	for name, c := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		field  string
		// from is the version of the API that honours it, "" for none.
		from string
	}{
		"huge pages": {func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1 << 21}}
		}, "config.linux.resources.hugepage_limits", ""},
		"unified": {func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources.Unified = map[string]string{"memory.high": "1"}
		}, "config.linux.resources.unified", ""},
		"ambient capabilities": {func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddAmbientCapabilities: []string{"NET_RAW"}}
		}, "config.linux.security_context.capabilities", ""},
		"SELinux": {func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Type: "x_t"}
		}, "config.linux.security_context.selinux_options", ""},
		"recursive read-only": {
			mount(&runtimeapi.Mount{HostPath: "/a", ContainerPath: "/b", Readonly: true, RecursiveReadOnly: true}),
			"config.mounts[0].recursive_read_only", "1.44",
		},
		"CDI": {func(c *runtimeapi.ContainerConfig) {
			c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}}
		}, "config.CDI_devices", "1.44"},
		"image": {mount(&runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: "i"}, ContainerPath: "/b", Readonly: true}), "config.mounts[0].image", "1.48"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(func(config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) { c.change(config) })
			err := CheckContainer(in.Spec.Config, in.Spec.SandboxSpec.Config, factsWith("1.43"))
			if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), c.field) {
				t.Errorf("error %v, want Unsupported for %s", err, c.field)
			}
			if c.from == "" {
				return
			}
			if err := CheckContainer(in.Spec.Config, in.Spec.SandboxSpec.Config, factsWith(c.from)); err != nil {
				t.Errorf("API %s: %v", c.from, err)
			}
		})
	}
}

func TestMemoryWithoutSwap(t *testing.T) {
	got, err := Resources("linux", &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 26, CpuShares: 512}, factsWith("1.41"))
	if err != nil || got.Memory != 1<<26 || got.MemorySwap != 1<<26 || got.CPUShares != 512 {
		t.Errorf("limits %+v, %v", got, err)
	}
}

func TestLogsThatCannotBeRead(t *testing.T) {
	in := input(nil)
	in.Facts.LoggingDriver = "none"
	got, err := Container(in)
	if err != nil || got.HostConfig.LogConfig.Type != "json-file" {
		t.Errorf("log driver %q, %v", got.HostConfig.LogConfig.Type, err)
	}
}

// TestRaisedOOMScore: an engine that cannot set the requested score gets another one.
func TestRaisedOOMScore(t *testing.T) {
	in := input(func(config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) {
		config.Linux.Resources = &runtimeapi.LinuxContainerResources{OomScoreAdj: -997}
	})
	pause := SandboxInput{Spec: in.Spec.SandboxSpec, Facts: in.Facts}
	raised := -3
	for _, want := range []struct {
		raised           *int
		container, pause int
	}{{nil, -997, PauseOOMScore}, {&raised, -3, -3}} {
		in.RaisedOOMScore, pause.RaisedOOMScore = want.raised, want.raised
		c, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Sandbox(pause)
		if err != nil {
			t.Fatal(err)
		}
		if c.HostConfig.OomScoreAdj != want.container || p.HostConfig.OomScoreAdj != want.pause {
			t.Errorf("%d and %d, want %d and %d", c.HostConfig.OomScoreAdj, p.HostConfig.OomScoreAdj, want.container, want.pause)
		}
	}
}

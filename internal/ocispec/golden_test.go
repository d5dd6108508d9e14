package ocispec

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/golden"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

func plainInput() Input {
	in := Input{
		ID: "c1", SandboxID: "s1",
		Config: requesttest.KubeletContainer(), SandboxConfig: requesttest.KubeletSandbox(),
		Image: imagespec.ImageConfig{
			Entrypoint: []string{"/server"}, Cmd: []string{"--port=80"},
			Env: []string{"PATH=/bin", "VERSION=1", "broken"}, WorkingDir: "/srv",
		},
		Rootfs: "/rootfs", Hostname: "web", CgroupsPath: "/kubepods/besteffort/pod1f0c/c1",
		Namespaces: Namespaces{Net: "/ns/net", IPC: "/ns/ipc", UTS: "/ns/uts"},
		Files:      Files{Hosts: "/pod/hosts", Hostname: "/pod/hostname", ResolvConf: "/pod/resolv.conf", Shm: "/pod/shm"},
		User:       User{Groups: []uint32{0}},
		Sources:    map[string]Source{},
		Host:       Host{Capabilities: request.AllCapabilities()},
	}
	for _, m := range in.Config.Mounts {
		in.Sources[m.HostPath] = Source{Path: m.HostPath}
	}
	return in
}

// inUserNamespace puts the pod into a user namespace whose root is 100000.
func inUserNamespace(in *Input) {
	requesttest.InUserNamespace(in.SandboxConfig, in.Config)
	in.UserNamespace = request.UserNamespaceOf(in.SandboxConfig)
	in.Namespaces.User = "/ns/user"
}

func TestGoldenSpecs(t *testing.T) {
	cases := map[string]func(in *Input){
		"plain": func(*Input) {},
		"user-namespace": func(in *Input) {
			inUserNamespace(in)
			in.Config.Mounts = append(in.Config.Mounts,
				&runtimeapi.Mount{ContainerPath: "/tools", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "sha256:bb"}, ImageSubPath: "bin", MountOptions: []string{"nosuid"}},
				&runtimeapi.Mount{ContainerPath: "/data", HostPath: "/data", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"noexec", "nodev"}, UidMappings: requesttest.IDs(100000), GidMappings: requesttest.IDs(100000)},
				&runtimeapi.Mount{ContainerPath: "/other", HostPath: "/other", UidMappings: requesttest.IDs(5000), GidMappings: requesttest.IDs(5000)})
			in.Sources["/data"], in.Sources["/other"] = Source{Path: "/mnt/data"}, Source{Path: "/other"}
			in.Volumes = map[int]string{3: "/volumes/tools/bin"}
			in.Devices = []Device{
				{Path: "/dev/fuse", Source: "/dev/fuse", Type: "c", Major: 10, Minor: 229, Mode: 0o666, Access: "rw"},
				{Path: "/dev/moved", Source: "/dev/kvm", Type: "c", Major: 10, Minor: 232, Mode: 0o660, Access: "r"},
			}
			in.Host.RecursiveReadOnly = true
		},
		"user-namespace-host-network": func(in *Input) {
			inUserNamespace(in)
			in.SandboxConfig.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
			in.Namespaces.Net, in.Namespaces.UTS = "", ""
			in.Host.RecursiveReadOnly = true
		},
		"host-namespaces": func(in *Input) {
			node := &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
			}
			in.SandboxConfig.Linux.SecurityContext.NamespaceOptions = node
			in.Config.Linux.SecurityContext.NamespaceOptions = node
			in.Namespaces = Namespaces{}
			in.Files.Shm = "/dev/shm"
		},
		"privileged": func(in *Input) {
			in.Config.Linux.SecurityContext.Privileged = true
			in.SandboxConfig.Linux.SecurityContext.Privileged = true
			in.AllDevices = true
			in.Devices = []Device{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, Mode: 0o666, Access: "rwm"}}
		},
		"privileged-v2": func(in *Input) {
			in.Config.Linux.SecurityContext.Privileged = true
			in.SandboxConfig.Linux.SecurityContext.Privileged = true
			in.Host.CgroupV2, in.Host.CgroupOptions = true, []string{"nsdelegate", "memory_recursiveprot"}
		},
		"confined": func(in *Input) {
			security := in.Config.Linux.SecurityContext
			security.NoNewPrivs = true
			security.ReadonlyRootfs = true
			security.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"net_bind_service"}}
			in.User = User{UID: 1000, GID: 1000, Groups: []uint32{1000, 27}, Home: "/home/app"}
			in.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno}
		},
		"shared-pid-tty": func(in *Input) {
			in.Config.Tty, in.Config.Stdin = true, true
			in.Config.Command, in.Config.Args = []string{"sh"}, []string{"-l"}
			in.Config.WorkingDir = "/tmp/"
			in.Config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			in.SandboxConfig.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			in.Namespaces.PID = "/ns/pid"
		},
		"limits-v2": func(in *Input) {
			in.Host.CgroupV2, in.Host.Hugetlb, in.Host.SwapLimit = true, true, true
			res := in.Config.Linux.Resources
			res.CpuQuota, res.MemoryLimitInBytes, res.CpusetCpus, res.CpusetMems = 50000, 64<<20, "0-1", "0"
			res.Unified["memory.min"] = "4096"
			res.HugepageLimits[0].Limit = 4 << 20
		},
		"mounts": func(in *Input) {
			in.Config.Mounts = []*runtimeapi.Mount{
				{ContainerPath: "/dev", HostPath: "/dev", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
				{ContainerPath: "/data/deep/er", HostPath: "/b"},
				{ContainerPath: "/data/", HostPath: "/a", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
				{ContainerPath: "/sys", HostPath: "/sys", Readonly: true},
			}
			in.Sources = map[string]Source{
				"/dev": {Path: "/dev", Slave: true}, "/a": {Path: "/real/a", Shared: true}, "/b": {Path: "/b"}, "/sys": {Path: "/sys"},
			}
			in.Devices = []Device{{Path: "/dev/kvm", Type: "c", Major: 10, Minor: 232, Mode: 0o660, GID: 36, Access: "rw"}}
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			in := plainInput()
			change(&in)
			if err := check.Sandbox(in.SandboxConfig); err != nil {
				t.Errorf("CheckSandbox: %v", err)
			}
			if err := check.Container(in.Config, in.SandboxConfig); err != nil {
				t.Errorf("CheckContainer: %v", err)
			}
			spec, err := Container(in)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, name, spec)
		})
	}
}

func TestGoldenPodInit(t *testing.T) {
	compareGolden(t, "pod-init", PodInit{
		SandboxID: "s1", SandboxConfig: requesttest.KubeletSandbox(), Rootfs: "/sealed", IDs: wholeHost(),
		CgroupsPath: "/pod/s1", Namespaces: Namespaces{Net: "/ns/net", IPC: "/ns/ipc", UTS: "/ns/uts"},
	}.Spec())
}

func TestGoldenRootContainer(t *testing.T) {
	sandbox := requesttest.KubeletSandbox()
	sandbox.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 150000, MemoryLimitInBytes: 1 << 30}
	in := RootContainer{
		PodInit: PodInit{
			SandboxID: "s1", SandboxConfig: sandbox, Rootfs: "/sealed", IDs: wholeHost(),
			CgroupsPath: "/pod/s1", Namespaces: Namespaces{Net: "/ns/net", IPC: "/ns/ipc", UTS: "/ns/uts"},
		},
		Hostname: "web", Shm: "/shm",
		Annotations: map[string]string{"dev.gvisor.x": "1", "io.kubernetes.cri.container-type": "container"},
	}
	compareGolden(t, "root-container", in.Spec())
	compareGolden(t, "shim-sandbox", in.SandboxSpec())
}

func compareGolden(t *testing.T, name string, spec *specs.Spec) {
	t.Helper()
	got, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/"+name+".json", string(got)+"\n")
}

func TestSameInputSameSpec(t *testing.T) {
	first, err := Container(plainInput())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Container(plainInput())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatalf("the spec changed:\n%s", diff)
		}
	}
}

func BenchmarkContainer(b *testing.B) {
	in := plainInput()
	for b.Loop() {
		if _, err := Container(in); err != nil {
			b.Fatal(err)
		}
	}
}

package translate

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/golden"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

// engines are kinds of engines that requests differ for.
func engines() map[string]Facts {
	kind := func(version string, change func(*api.Facts)) Facts {
		facts := api.Facts{APIVersion: version, CgroupDriver: "cgroupfs", Seccomp: true, SwapLimit: true, LoggingDriver: "json-file", StorageDriver: "overlay2"}
		if change != nil {
			change(&facts)
		}
		return Facts{facts}
	}
	return map[string]Facts{
		"1.40":       kind("1.40", func(f *api.Facts) { f.SwapLimit, f.LoggingDriver = false, "none" }),
		"1.41":       kind("1.41", nil),
		"1.44":       kind("1.44", func(f *api.Facts) { f.CgroupV2, f.AppArmor = true, true }),
		"1.48":       kind("1.48", func(f *api.Facts) { f.CgroupV2, f.CgroupDriver, f.AppArmor = true, "systemd", true }),
		"containerd": kind("1.51", func(f *api.Facts) { f.ContainerdStore, f.StorageDriver = true, "overlayfs" }),
		"selinux":    kind("1.44", func(f *api.Facts) { f.SELinux = true }),
		"userns":     kind("1.44", func(f *api.Facts) { f.UserNSRemap = true }),
	}
}

// kubelets is the request of a kubelet for a pod and a container, with much of what a pod can have and
// the engine honours.
func kubelets(facts Facts) (SandboxInput, ContainerInput) {
	pod, config := requesttest.KubeletSandbox(), requesttest.KubeletContainer()
	pod.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_unprivileged_port_start": "80"}
	config.Mounts = append(config.Mounts,
		&runtimeapi.Mount{HostPath: "/data/", ContainerPath: "/data", Readonly: true, Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		&runtimeapi.Mount{HostPath: "/csi", ContainerPath: "/csi", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		&runtimeapi.Mount{HostPath: "/shared", ContainerPath: "/shared", SelinuxRelabel: true, Readonly: true})
	images := map[int]string{}
	if facts.has(apiRecursiveReadOnly) {
		config.Mounts = append(config.Mounts, &runtimeapi.Mount{HostPath: "/deep", ContainerPath: "/deep", Readonly: true, RecursiveReadOnly: true})
		config.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}}
	}
	if facts.has(apiImageMounts) {
		images[len(config.Mounts)] = "sha256:tools"
		config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: "/tools", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "tools"}, ImageSubPath: "bin"})
	}
	config.Tty, config.Stdin, config.StdinOnce = true, true, true
	config.StopSignal = runtimeapi.Signal_SIGNAL_SIGINT
	config.Linux.Resources.CpuQuota, config.Linux.Resources.MemoryLimitInBytes, config.Linux.Resources.CpusetCpus = 50000, 64<<20, "0-1"
	security := config.Linux.SecurityContext
	security.ReadonlyRootfs, security.NoNewPrivs = true, true
	security.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"CHOWN"}}
	if facts.SELinux {
		security.SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0:c1,c2", Type: "container_t"}
		pod.Linux.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
	}
	parent := "/kubepods/besteffort/pod1f0c"
	if facts.CgroupDriver == "systemd" {
		parent = "kubepods-besteffort-pod1f0c.slice"
	}
	filter := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow}}}
	sandbox := &engine.SandboxSpec{ID: strings.Repeat("5", 64), Config: pod}
	spec := &engine.ContainerSpec{
		ID: strings.Repeat("c", 64), Config: config, SandboxSpec: sandbox, ImageID: "sha256:aa", VolumeImages: images, LogPath: "/var/log/pods/default_web_1f0c/server/0.log",
		ImageConfig: imagespec.ImageConfig{Entrypoint: []string{"/server"}, Cmd: []string{"--port=80"}, Env: []string{"PATH=/bin"}, WorkingDir: "/srv"},
	}
	return SandboxInput{
		Spec: sandbox, Hostname: "web", Name: labels.SandboxName(pod), Image: "sha256:pause", Labels: labels.OfSandbox(sandbox, "default"),
		CgroupParent: parent, Seccomp: filter, Facts: facts,
	}, ContainerInput{
		Spec: spec, Name: labels.ContainerName(config, pod), Labels: labels.OfContainer(spec, "default", "pause1"),
		SandboxID: "pause1", TargetID: "target1", CgroupParent: parent, Seccomp: filter, AppArmor: "berth-default",
		Defaults: ocispec.Defaults{Env: []string{"TZ=UTC"}, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 524288}}},
		User:     ocispec.User{UID: 1000, GID: 1001, Groups: []uint32{1001, 50}},
		Devices:  []ocispec.Device{{Path: "/dev/inner", Source: "/dev/fuse", Type: "c", Major: 10, Minor: 229, Access: "rw"}},
		Facts:    facts,
	}
}

// TestGoldenRequests: what each kind of engine gets for the same pod.
func TestGoldenRequests(t *testing.T) {
	for name, facts := range engines() {
		t.Run(name, func(t *testing.T) {
			pause, in := kubelets(facts)
			if err := CheckSandbox(pause.Spec.Config, facts); err != nil {
				t.Fatal(err)
			}
			if err := CheckContainer(in.Spec.Config, pause.Spec.Config, facts); err != nil {
				t.Fatal(err)
			}
			sandbox, err := Sandbox(pause)
			if err != nil {
				t.Fatal(err)
			}
			container, err := Container(in)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.MarshalIndent(map[string]any{"sandbox": sandbox, "container": container}, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, filepath.Join("testdata", name+".json"), string(text)+"\n")
		})
	}
}

package ocispec

import (
	"maps"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// RootContainer is what the spec of a pod's root container depends on: the first container of a pod whose runtime is
// the sandbox itself (gVisor, Kata Containers). The runtime makes the sandbox with it. It runs the program of a
// PodInit, from the same root file system, and has no image.
type RootContainer struct {
	PodInit
	// Hostname is the pod's. The sandbox has it, because it has a kernel of its own.
	Hostname string
	// Shm is the directory of the pod's shared memory, "" for none.
	Shm string
	// Annotations are those of the pod that the runtime gets.
	Annotations map[string]string
}

// rootRole is the argument of the program that makes it wait, and reap orphans.
const rootRole = "hold"

// rootShares is the CPU weight of the root container, the smallest that there is.
const rootShares = 2

// Spec computes the spec. It has no limits: a runtime may put the whole sandbox into the cgroup of its root container.
func (in RootContainer) Spec() *specs.Spec {
	spec := in.PodInit.Spec()
	shares := uint64(rootShares)
	spec.Hostname = in.Hostname
	spec.Linux.Resources.Memory, spec.Linux.Resources.Pids = nil, nil
	spec.Linux.Resources.CPU = &specs.LinuxCPU{Shares: &shares}
	spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
	}
	if in.Shm != "" {
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: "/dev/shm", Type: "bind", Source: in.Shm, Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev"},
		})
	}
	// A pod's init limits its processes to none. gVisor takes the limits of the root container's process for the first
	// processes of all containers.
	spec.Process.Args, spec.Process.Env = []string{"/" + PodInitProgram, rootRole}, []string{"PATH=/", "HOME=/"}
	all := map[string]string{}
	maps.Copy(all, in.Annotations)
	maps.DeleteFunc(all, func(key, _ string) bool { return request.ControlsRuntime(key) })
	maps.Copy(all, in.limits())
	maps.Copy(all, spec.Annotations)
	spec.Annotations = all
	return spec
}

// SandboxSpec computes the spec of a sandbox that a shim makes without a root container, by the sandbox API. Nothing runs
// by it: it has the cgroup, and the annotations that a root container would have.
func (in RootContainer) SandboxSpec() *specs.Spec {
	all := in.Spec()
	return &specs.Spec{
		Version:     specs.Version,
		Root:        &specs.Root{Path: "/", Readonly: true},
		Process:     &specs.Process{Args: []string{"sandbox"}, Cwd: "/"},
		Annotations: all.Annotations,
		Linux:       &specs.Linux{CgroupsPath: all.Linux.CgroupsPath},
	}
}

// limits are the annotations with the limits of the pod. Kata Containers sizes its machines by them.
func (in RootContainer) limits() map[string]string {
	res := in.SandboxConfig.GetLinux().GetResources()
	limits := map[string]string{}
	for key, value := range map[string]int64{
		"io.kubernetes.cri.sandbox-cpu-period": res.GetCpuPeriod(),
		"io.kubernetes.cri.sandbox-cpu-quota":  res.GetCpuQuota(),
		"io.kubernetes.cri.sandbox-cpu-shares": res.GetCpuShares(),
		"io.kubernetes.cri.sandbox-memory":     res.GetMemoryLimitInBytes(),
	} {
		if value != 0 {
			limits[key] = strconv.FormatInt(value, 10)
		}
	}
	return limits
}

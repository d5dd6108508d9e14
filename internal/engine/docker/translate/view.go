package translate

import (
	"path"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// View is what an engine reports of a container, in the form of the OCI spec, which tools read. The
// engine does not show the whole spec that its runtime gets. secrets shows the values of the
// environment.
func View(got *container.InspectResponse, secrets bool) *specs.Spec {
	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Terminal: got.Config.Tty, Cwd: got.Config.WorkingDir, Env: got.Config.Env,
			Args:            append(append([]string{}, got.Config.Entrypoint...), got.Config.Cmd...),
			ApparmorProfile: got.AppArmorProfile, SelinuxLabel: got.ProcessLabel, OOMScoreAdj: &got.HostConfig.OomScoreAdj,
		},
		Root:     &specs.Root{Readonly: got.HostConfig.ReadonlyRootfs},
		Hostname: got.Config.Hostname,
		Linux: &specs.Linux{
			CgroupsPath: cgroupsPath(got), MountLabel: got.MountLabel, Resources: resourcesOf(&got.HostConfig.Resources),
			MaskedPaths: got.HostConfig.MaskedPaths, ReadonlyPaths: got.HostConfig.ReadonlyPaths,
		},
	}
	if !secrets {
		spec.Process.Env = namesOf(got.Config.Env)
	}
	for _, m := range got.Mounts {
		access := "ro"
		if m.RW {
			access = "rw"
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: m.Destination, Source: m.Source, Type: string(m.Type), Options: []string{access, string(m.Propagation)},
		})
	}
	return spec
}

// namesOf are the names of an environment without the values.
func namesOf(env []string) []string {
	names := make([]string, len(env))
	for i, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		names[i] = name + "=[hidden]"
	}
	return names
}

// cgroupsPath is the container's cgroup as its runtime gets it: a path, or "slice:prefix:name" with
// the systemd driver.
func cgroupsPath(got *container.InspectResponse) string {
	parent := got.HostConfig.CgroupParent
	if strings.HasSuffix(parent, ".slice") {
		return parent + ":docker:" + got.ID
	}
	return path.Join("/", parent, got.ID)
}

func resourcesOf(limits *container.Resources) *specs.LinuxResources {
	period, shares := uint64(max(limits.CPUPeriod, 0)), uint64(max(limits.CPUShares, 0)) //nolint:gosec // no less than 0
	return &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: &shares, Quota: &limits.CPUQuota, Period: &period, Cpus: limits.CpusetCpus, Mems: limits.CpusetMems},
		Memory: &specs.LinuxMemory{Limit: &limits.Memory, Swap: &limits.MemorySwap},
	}
}

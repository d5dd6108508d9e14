package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// generator changes an OCI spec for NRI's library (generate.UnderlyingGenerator). Each method
// does what its name says.
type generator struct {
	spec *specs.Spec
}

// newGenerator completes the parts of the spec that the library and the methods below write to.
func newGenerator(spec *specs.Spec) *generator {
	if spec.Process == nil {
		spec.Process = &specs.Process{}
	}
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	return &generator{spec: spec}
}

func (g *generator) resources() *specs.LinuxResources {
	if g.spec.Linux.Resources == nil {
		g.spec.Linux.Resources = &specs.LinuxResources{}
	}
	return g.spec.Linux.Resources
}

func (g *generator) cpu() *specs.LinuxCPU {
	if g.resources().CPU == nil {
		g.resources().CPU = &specs.LinuxCPU{}
	}
	return g.resources().CPU
}

func (g *generator) memory() *specs.LinuxMemory {
	if g.resources().Memory == nil {
		g.resources().Memory = &specs.LinuxMemory{}
	}
	return g.resources().Memory
}

func (g *generator) hooks() *specs.Hooks {
	if g.spec.Hooks == nil {
		g.spec.Hooks = &specs.Hooks{}
	}
	return g.spec.Hooks
}

func (g *generator) Spec() *specs.Spec { return g.spec }

func (g *generator) AddAnnotation(key, value string) {
	if g.spec.Annotations == nil {
		g.spec.Annotations = map[string]string{}
	}
	g.spec.Annotations[key] = value
}

func (g *generator) RemoveAnnotation(key string) { delete(g.spec.Annotations, key) }

func (g *generator) AddDevice(device specs.LinuxDevice) {
	g.RemoveDevice(device.Path)
	g.spec.Linux.Devices = append(g.spec.Linux.Devices, device)
}

func (g *generator) RemoveDevice(path string) {
	g.spec.Linux.Devices = slices.DeleteFunc(g.spec.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

func (g *generator) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	g.resources().Devices = append(g.resources().Devices,
		specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}

// AddOrReplaceLinuxNamespace refuses a type that the OCI runtime specification does not have.
func (g *generator) AddOrReplaceLinuxNamespace(kind, path string) error {
	known := []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace,
		specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace,
	}
	if !slices.Contains(known, specs.LinuxNamespaceType(kind)) {
		return fmt.Errorf("linux.namespaces: unknown namespace type %q: %w", kind, errs.Invalid)
	}
	if err := g.RemoveLinuxNamespace(kind); err != nil {
		return err
	}
	g.spec.Linux.Namespaces = append(g.spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.LinuxNamespaceType(kind), Path: path})
	return nil
}

func (g *generator) RemoveLinuxNamespace(kind string) error {
	g.spec.Linux.Namespaces = slices.DeleteFunc(g.spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return string(ns.Type) == kind })
	return nil
}

func (g *generator) AddPreStartHook(hook specs.Hook) {
	g.hooks().Prestart = append(g.hooks().Prestart, hook) //nolint:staticcheck // old, and plugins use it
}

func (g *generator) AddPostStartHook(hook specs.Hook) {
	g.hooks().Poststart = append(g.hooks().Poststart, hook)
}

func (g *generator) AddPostStopHook(hook specs.Hook) {
	g.hooks().Poststop = append(g.hooks().Poststop, hook)
}

func (g *generator) ClearProcessEnv() { g.spec.Process.Env = nil }

func (g *generator) AddProcessEnv(name, value string) {
	g.spec.Process.Env = slices.DeleteFunc(g.spec.Process.Env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	g.spec.Process.Env = append(g.spec.Process.Env, name+"="+value)
}

func (g *generator) SetProcessArgs(args []string) { g.spec.Process.Args = args }

func (g *generator) SetProcessOOMScoreAdj(score int) { g.spec.Process.OOMScoreAdj = &score }

func (g *generator) AddMount(m specs.Mount) { g.spec.Mounts = append(g.spec.Mounts, m) }

func (g *generator) ClearMounts() { g.spec.Mounts = nil }

func (g *generator) Mounts() []specs.Mount { return g.spec.Mounts }

func (g *generator) RemoveMount(destination string) {
	g.spec.Mounts = slices.DeleteFunc(g.spec.Mounts, func(m specs.Mount) bool { return m.Destination == destination })
}

func (g *generator) AddLinuxSysctl(key, value string) {
	if g.spec.Linux.Sysctl == nil {
		g.spec.Linux.Sysctl = map[string]string{}
	}
	g.spec.Linux.Sysctl[key] = value
}

func (g *generator) RemoveLinuxSysctl(key string) { delete(g.spec.Linux.Sysctl, key) }

func (g *generator) SetLinuxCgroupsPath(path string) { g.spec.Linux.CgroupsPath = path }

// SetLinuxRootPropagation refuses what is not a propagation of the OCI runtime specification.
func (g *generator) SetLinuxRootPropagation(propagation string) error {
	if !slices.Contains([]string{"", "private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"}, propagation) {
		return fmt.Errorf("mounts: %q is not a propagation of the root: %w", propagation, errs.Invalid)
	}
	g.spec.Linux.RootfsPropagation = propagation
	return nil
}

func (g *generator) AddLinuxResourcesHugepageLimit(pageSize string, limit uint64) {
	limits := slices.DeleteFunc(g.resources().HugepageLimits, func(l specs.LinuxHugepageLimit) bool { return l.Pagesize == pageSize })
	g.resources().HugepageLimits = append(limits, specs.LinuxHugepageLimit{Pagesize: pageSize, Limit: limit})
}

func (g *generator) AddLinuxResourcesUnified(key, value string) {
	if g.resources().Unified == nil {
		g.resources().Unified = map[string]string{}
	}
	g.resources().Unified[key] = value
}

func (g *generator) SetLinuxResourcesCPUCpus(cpus string) { g.cpu().Cpus = cpus }

func (g *generator) SetLinuxResourcesCPUMems(mems string) { g.cpu().Mems = mems }

func (g *generator) SetLinuxResourcesCPUPeriod(period uint64) { g.cpu().Period = &period }

func (g *generator) SetLinuxResourcesCPUQuota(quota int64) { g.cpu().Quota = &quota }

func (g *generator) SetLinuxResourcesCPURealtimePeriod(period uint64) {
	g.cpu().RealtimePeriod = &period
}

func (g *generator) SetLinuxResourcesCPURealtimeRuntime(runtime int64) {
	g.cpu().RealtimeRuntime = &runtime
}

func (g *generator) SetLinuxResourcesCPUShares(shares uint64) { g.cpu().Shares = &shares }

func (g *generator) SetLinuxResourcesMemoryLimit(limit int64) { g.memory().Limit = &limit }

func (g *generator) SetLinuxResourcesMemorySwap(swap int64) { g.memory().Swap = &swap }

package convert

import (
	"maps"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container returns a container as plugins see it, from its request and its OCI spec, which may
// be nil. The caller adds what its state is.
func Container(config *runtimeapi.ContainerConfig, spec *specs.Spec) *api.Container {
	c := &api.Container{
		Name:        config.GetMetadata().GetName(),
		Labels:      maps.Clone(config.GetLabels()),
		Annotations: map[string]string{},
		Linux:       &api.LinuxContainer{},
	}
	for _, device := range config.GetCDIDevices() {
		c.CDIDevices = append(c.CDIDevices, &api.CDIDevice{Name: device.GetName()})
	}
	if spec != nil {
		maps.Copy(c.Annotations, spec.Annotations)
		c.Mounts = api.FromOCIMounts(spec.Mounts)
		c.Hooks = api.FromOCIHooks(spec.Hooks)
		addProcess(c, spec.Process)
		addLinux(c.Linux, spec.Linux)
	}
	maps.Copy(c.Annotations, config.GetAnnotations())
	c.Linux.SeccompProfile = seccompProfile(config, spec)
	return c
}

func addProcess(c *api.Container, p *specs.Process) {
	if p == nil {
		return
	}
	c.Args, c.Env = api.DupStringSlice(p.Args), api.DupStringSlice(p.Env)
	for _, limit := range p.Rlimits {
		c.Rlimits = append(c.Rlimits, &api.POSIXRlimit{Type: limit.Type, Hard: limit.Hard, Soft: limit.Soft})
	}
	c.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: p.User.AdditionalGids}
	c.Linux.OomScoreAdj = api.Int(p.OOMScoreAdj)
	c.Linux.IoPriority = api.FromOCILinuxIOPriority(p.IOPriority)
	c.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
}

func addLinux(to *api.LinuxContainer, l *specs.Linux) {
	if l == nil {
		return
	}
	to.Namespaces = api.FromOCILinuxNamespaces(l.Namespaces)
	to.Devices = api.FromOCILinuxDevices(l.Devices)
	to.Resources = api.FromOCILinuxResources(l.Resources, nil)
	to.CgroupsPath = l.CgroupsPath
	to.Sysctl = maps.Clone(l.Sysctl)
	to.NetDevices = api.FromOCILinuxNetDevices(l.NetDevices)
	if l.Seccomp != nil {
		to.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
	}
	if rdt := l.IntelRdt; rdt != nil {
		to.Rdt = &api.LinuxRdt{ClosId: api.String(rdt.ClosID), Schemata: api.RepeatedString(rdt.Schemata), EnableMonitoring: api.Bool(rdt.EnableMonitoring)}
	}
}

// seccompProfile is the kind of profile that a request names. Where it names none, the filter of
// the spec decides.
func seccompProfile(config *runtimeapi.ContainerConfig, spec *specs.Spec) *api.SecurityProfile {
	profile := config.GetLinux().GetSecurityContext().GetSeccomp()
	if profile == nil {
		kind := api.SecurityProfile_UNCONFINED
		if spec != nil && spec.Linux != nil && spec.Linux.Seccomp != nil {
			kind = api.SecurityProfile_RUNTIME_DEFAULT
		}
		return &api.SecurityProfile{ProfileType: kind}
	}
	return &api.SecurityProfile{
		ProfileType: map[runtimeapi.SecurityProfile_ProfileType]api.SecurityProfile_ProfileType{
			runtimeapi.SecurityProfile_RuntimeDefault: api.SecurityProfile_RUNTIME_DEFAULT,
			runtimeapi.SecurityProfile_Unconfined:     api.SecurityProfile_UNCONFINED,
			runtimeapi.SecurityProfile_Localhost:      api.SecurityProfile_LOCALHOST,
		}[profile.GetProfileType()],
		LocalhostRef: profile.GetLocalhostRef(),
	}
}

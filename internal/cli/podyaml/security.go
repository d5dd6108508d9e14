package podyaml

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// defaultMaskedPaths and defaultReadonlyPaths are what procMount Default hides from
// a container, the same as under a kubelet.
func defaultMaskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func defaultReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

func (b *Bundle) namespaces(facts *Facts) *runtimeapi.NamespaceOption {
	ns := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD,
		Pid:     runtimeapi.NamespaceMode_CONTAINER,
		Ipc:     runtimeapi.NamespaceMode_POD,
	}
	spec := &b.Pod.Spec
	if mappings := b.mappings(facts); mappings != nil {
		ns.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mappings, Gids: mappings}
	}
	if spec.HostNetwork {
		ns.Network = runtimeapi.NamespaceMode_NODE
	}
	if spec.HostIPC {
		ns.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case spec.HostPID:
		ns.Pid = runtimeapi.NamespaceMode_NODE
	case spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace:
		ns.Pid = runtimeapi.NamespaceMode_POD
	}
	return ns
}

func (b *Bundle) sandboxSecurityContext(facts *Facts) *runtimeapi.LinuxSandboxSecurityContext {
	pod := b.Pod.Spec.SecurityContext
	return &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:   b.namespaces(facts),
		RunAsUser:          number(pod.RunAsUser),
		RunAsGroup:         number(pod.RunAsGroup),
		SupplementalGroups: b.groups(),
		Privileged:         b.hasPrivileged(),
		Seccomp:            seccomp(pod.SeccompProfile, false, facts),
		Apparmor:           appArmor(pod.AppArmorProfile),
		SelinuxOptions:     seLinux(pod.SELinuxOptions),

		SupplementalGroupsPolicy: groupsPolicy(pod.SupplementalGroupsPolicy),
	}
}

func (b *Bundle) hasPrivileged() bool {
	return slices.ContainsFunc(b.containers(), func(c *corev1.Container) bool { return isTrue(c.SecurityContext.Privileged) })
}

// idsOfPod is how many ids a pod's user namespace has.
const idsOfPod = 65536

// mappings are those of the pod's user namespace, nil for the host's.
func (b *Bundle) mappings(facts *Facts) []*runtimeapi.IDMapping {
	if b.Pod.Spec.HostUsers == nil || *b.Pod.Spec.HostUsers {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: facts.UserNamespace, ContainerId: 0, Length: idsOfPod}}
}

// securityContext is the container's own, and the pod's where that is silent.
func (b *Bundle) securityContext(c *corev1.Container, facts *Facts) *runtimeapi.LinuxContainerSecurityContext {
	pod, own := b.Pod.Spec.SecurityContext, c.SecurityContext
	privileged := isTrue(own.Privileged)
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:   b.namespaces(facts),
		Privileged:         privileged,
		RunAsUser:          number(orPod(own.RunAsUser, pod.RunAsUser)),
		RunAsGroup:         number(orPod(own.RunAsGroup, pod.RunAsGroup)),
		SupplementalGroups: b.groups(),
		ReadonlyRootfs:     isTrue(own.ReadOnlyRootFilesystem),
		NoNewPrivs:         own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		Seccomp:            seccomp(orPod(own.SeccompProfile, pod.SeccompProfile), privileged, facts),
		Apparmor:           appArmor(b.appArmorOf(c)),
		SelinuxOptions:     seLinux(orPod(own.SELinuxOptions, pod.SELinuxOptions)),

		SupplementalGroupsPolicy: groupsPolicy(pod.SupplementalGroupsPolicy),
	}
	if own.Capabilities != nil {
		sc.Capabilities = &runtimeapi.Capability{}
		for _, name := range own.Capabilities.Add {
			sc.Capabilities.AddCapabilities = append(sc.Capabilities.AddCapabilities, string(name))
		}
		for _, name := range own.Capabilities.Drop {
			sc.Capabilities.DropCapabilities = append(sc.Capabilities.DropCapabilities, string(name))
		}
	}
	if !privileged && (own.ProcMount == nil || *own.ProcMount == corev1.DefaultProcMount) {
		sc.MaskedPaths, sc.ReadonlyPaths = defaultMaskedPaths(), defaultReadonlyPaths()
	}
	return sc
}

// RunAsNonRoot reports whether the container must not run as root, and the user that
// the YAML gives it (nil: the image decides).
func (b *Bundle) RunAsNonRoot(c *corev1.Container) (must bool, user *int64) {
	pod, own := b.Pod.Spec.SecurityContext, c.SecurityContext
	return isTrue(orPod(own.RunAsNonRoot, pod.RunAsNonRoot)), orPod(own.RunAsUser, pod.RunAsUser)
}

// groups are the pod's own and the one that owns its volumes.
func (b *Bundle) groups() []int64 {
	pod := b.Pod.Spec.SecurityContext
	groups := append([]int64(nil), pod.SupplementalGroups...)
	if pod.FSGroup != nil {
		groups = append(groups, *pod.FSGroup)
	}
	return groups
}

// seccomp is the runtime's default profile where nothing is said: what a person
// starts by hand is confined unless they say otherwise.
func seccomp(p *corev1.SeccompProfile, privileged bool, facts *Facts) *runtimeapi.SecurityProfile {
	switch {
	case privileged, p != nil && p.Type == corev1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case p != nil && p.Type == corev1.SeccompProfileTypeLocalhost:
		ref := *p.LocalhostProfile
		if !path.IsAbs(ref) {
			ref = path.Join(facts.SeccompDir, ref)
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// annotationAppArmor is how pods asked for a profile before there was a field.
const annotationAppArmor = "container.apparmor.security.beta.kubernetes.io/"

// appArmorOf is the container's own profile, the old annotation's, or the pod's.
func (b *Bundle) appArmorOf(c *corev1.Container) *corev1.AppArmorProfile {
	if c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile
	}
	old := b.Pod.Annotations[annotationAppArmor+c.Name]
	switch name, isLocal := strings.CutPrefix(old, "localhost/"); {
	case isLocal:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	case old == "runtime/default":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case old == "unconfined":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	return b.Pod.Spec.SecurityContext.AppArmorProfile
}

// appArmor is nil where the runtime decides.
func appArmor(p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case corev1.AppArmorProfileTypeLocalhost:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

func seLinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func groupsPolicy(p *corev1.SupplementalGroupsPolicy) runtimeapi.SupplementalGroupsPolicy {
	if p != nil && *p == corev1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func orPod[T any](own, pod *T) *T {
	if own != nil {
		return own
	}
	return pod
}

func isTrue(b *bool) bool { return b != nil && *b }

func number(n *int64) *runtimeapi.Int64Value {
	if n == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *n}
}

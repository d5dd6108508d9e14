package podyaml

import (
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

func (b *Bundle) namespaces() *runtimeapi.NamespaceOption {
	ns := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD,
		Pid:     runtimeapi.NamespaceMode_CONTAINER,
		Ipc:     runtimeapi.NamespaceMode_POD,
	}
	spec := &b.Pod.Spec
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

func (b *Bundle) sandboxSecurityContext() *runtimeapi.LinuxSandboxSecurityContext {
	pod := b.Pod.Spec.SecurityContext
	return &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:   b.namespaces(),
		RunAsUser:          number(pod.RunAsUser),
		RunAsGroup:         number(pod.RunAsGroup),
		SupplementalGroups: b.groups(),
		Privileged:         b.hasPrivileged(),
		Seccomp:            seccomp(pod.SeccompProfile, false),
	}
}

func (b *Bundle) hasPrivileged() bool {
	for _, list := range [][]corev1.Container{b.Pod.Spec.InitContainers, b.Pod.Spec.Containers} {
		for i := range list {
			if isTrue(list[i].SecurityContext.Privileged) {
				return true
			}
		}
	}
	return false
}

// securityContext is the container's own, and the pod's where that is silent.
func (b *Bundle) securityContext(c *corev1.Container) *runtimeapi.LinuxContainerSecurityContext {
	pod, own := b.Pod.Spec.SecurityContext, c.SecurityContext
	privileged := isTrue(own.Privileged)
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:   b.namespaces(),
		Privileged:         privileged,
		RunAsUser:          number(orPod(own.RunAsUser, pod.RunAsUser)),
		RunAsGroup:         number(orPod(own.RunAsGroup, pod.RunAsGroup)),
		SupplementalGroups: b.groups(),
		ReadonlyRootfs:     isTrue(own.ReadOnlyRootFilesystem),
		NoNewPrivs:         own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		Seccomp:            seccomp(orPod(own.SeccompProfile, pod.SeccompProfile), privileged),
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

// RunAsNonRoot tells whether the container must not run as root, and the user that
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
func seccomp(p *corev1.SeccompProfile, privileged bool) *runtimeapi.SecurityProfile {
	switch {
	case privileged, p != nil && p.Type == corev1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case p != nil && p.Type == corev1.SeccompProfileTypeLocalhost:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
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

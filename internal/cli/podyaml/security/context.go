// Package security turns the security contexts of a pod into those of CRI.
package security

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// Host has the host's facts for security contexts.
type Host struct {
	// UserNamespace is the host's id of the pod's root, where hostUsers is false.
	UserNamespace uint32
	// SeccompDir holds the profiles that a pod names by a relative path.
	SeccompDir string
}

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

func namespaces(pod *corev1.Pod, host Host) *runtimeapi.NamespaceOption {
	ns := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD,
		Pid:     runtimeapi.NamespaceMode_CONTAINER,
		Ipc:     runtimeapi.NamespaceMode_POD,
	}
	spec := &pod.Spec
	if mappings := IDMappings(pod, host); mappings != nil {
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

// ForSandbox is the security context of the pod's sandbox.
func ForSandbox(pod *corev1.Pod, host Host) *runtimeapi.LinuxSandboxSecurityContext {
	own := pod.Spec.SecurityContext
	return &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:   namespaces(pod, host),
		RunAsUser:          number(own.RunAsUser),
		RunAsGroup:         number(own.RunAsGroup),
		SupplementalGroups: groups(pod),
		Privileged:         hasPrivileged(pod),
		Seccomp:            seccomp(own.SeccompProfile, false, host),
		Apparmor:           appArmor(own.AppArmorProfile),
		SelinuxOptions:     seLinux(own.SELinuxOptions),

		SupplementalGroupsPolicy: groupsPolicy(own.SupplementalGroupsPolicy),
	}
}

func hasPrivileged(pod *corev1.Pod) bool {
	return slices.ContainsFunc(podspec.Containers(pod), func(c *corev1.Container) bool { return podspec.IsTrue(c.SecurityContext.Privileged) })
}

// idsOfPod is how many ids a pod's user namespace has.
const idsOfPod = 65536

// IDMappings are those of the pod's user namespace, nil for the host's.
func IDMappings(pod *corev1.Pod, host Host) []*runtimeapi.IDMapping {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: host.UserNamespace, ContainerId: 0, Length: idsOfPod}}
}

// ForContainer is the security context of a container. A field that the container does not set
// has the pod's value.
func ForContainer(pod *corev1.Pod, c *corev1.Container, host Host) *runtimeapi.LinuxContainerSecurityContext {
	all, own := pod.Spec.SecurityContext, c.SecurityContext
	privileged := podspec.IsTrue(own.Privileged)
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:   namespaces(pod, host),
		Privileged:         privileged,
		RunAsUser:          number(orPod(own.RunAsUser, all.RunAsUser)),
		RunAsGroup:         number(orPod(own.RunAsGroup, all.RunAsGroup)),
		SupplementalGroups: groups(pod),
		ReadonlyRootfs:     podspec.IsTrue(own.ReadOnlyRootFilesystem),
		NoNewPrivs:         own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		Seccomp:            seccomp(orPod(own.SeccompProfile, all.SeccompProfile), privileged, host),
		Apparmor:           appArmor(appArmorOf(pod, c)),
		SelinuxOptions:     seLinux(orPod(own.SELinuxOptions, all.SELinuxOptions)),

		SupplementalGroupsPolicy: groupsPolicy(all.SupplementalGroupsPolicy),
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
func RunAsNonRoot(pod *corev1.Pod, c *corev1.Container) (must bool, user *int64) {
	all, own := pod.Spec.SecurityContext, c.SecurityContext
	return podspec.IsTrue(orPod(own.RunAsNonRoot, all.RunAsNonRoot)), orPod(own.RunAsUser, all.RunAsUser)
}

// groups are the pod's own and the one that owns its volumes.
func groups(pod *corev1.Pod) []int64 {
	all := pod.Spec.SecurityContext
	groups := append([]int64(nil), all.SupplementalGroups...)
	if all.FSGroup != nil {
		groups = append(groups, *all.FSGroup)
	}
	return groups
}

// seccomp is the runtime's default profile if none is set: containers that a user starts by hand
// are confined by default.
func seccomp(p *corev1.SeccompProfile, privileged bool, host Host) *runtimeapi.SecurityProfile {
	switch {
	case privileged, p != nil && p.Type == corev1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case p != nil && p.Type == corev1.SeccompProfileTypeLocalhost:
		ref := *p.LocalhostProfile
		if !path.IsAbs(ref) {
			ref = path.Join(host.SeccompDir, ref)
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// annotationAppArmor is the annotation for a profile from before the field existed.
const annotationAppArmor = "container.apparmor.security.beta.kubernetes.io/"

// appArmorOf is the container's own profile, the old annotation's, or the pod's.
func appArmorOf(pod *corev1.Pod, c *corev1.Container) *corev1.AppArmorProfile {
	if c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile
	}
	old := pod.Annotations[annotationAppArmor+c.Name]
	switch name, isLocal := strings.CutPrefix(old, "localhost/"); {
	case isLocal:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	case old == "runtime/default":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case old == "unconfined":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	return pod.Spec.SecurityContext.AppArmorProfile
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

func number(n *int64) *runtimeapi.Int64Value {
	if n == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *n}
}

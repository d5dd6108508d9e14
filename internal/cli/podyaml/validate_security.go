package podyaml

import (
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func (b *Bundle) validatePodSecurity(f *faults) {
	spec := &b.Pod.Spec
	sc, field := spec.SecurityContext, "spec.securityContext"
	validateSeccomp(f, field+".seccompProfile", sc.SeccompProfile)
	validateAppArmor(f, field+".appArmorProfile", sc.AppArmorProfile)
	validateIDs(f, field, map[string]*int64{"runAsUser": sc.RunAsUser, "runAsGroup": sc.RunAsGroup, "fsGroup": sc.FSGroup})
	for i, group := range sc.SupplementalGroups {
		validateIDs(f, field, map[string]*int64{"supplementalGroups[" + itoa(i) + "]": &group})
	}
	if p := sc.SupplementalGroupsPolicy; p != nil && *p != corev1.SupplementalGroupsPolicyMerge && *p != corev1.SupplementalGroupsPolicyStrict {
		f.add(field+".supplementalGroupsPolicy", "%q is neither Merge nor Strict", *p)
	}
	if p := sc.FSGroupChangePolicy; p != nil && *p != corev1.FSGroupChangeAlways && *p != corev1.FSGroupChangeOnRootMismatch {
		f.add(field+".fsGroupChangePolicy", "%q is neither Always nor OnRootMismatch", *p)
	}
	if p := sc.SELinuxChangePolicy; p != nil && *p != corev1.SELinuxChangePolicyMountOption && *p != corev1.SELinuxChangePolicyRecursive {
		f.add(field+".seLinuxChangePolicy", "%q is neither MountOption nor Recursive", *p)
	}
	if spec.HostUsers != nil && !*spec.HostUsers && (spec.HostPID || spec.HostIPC) {
		f.add("spec.hostUsers", "false goes with neither hostPID nor hostIPC")
	}
	if spec.HostPID && isTrue(spec.ShareProcessNamespace) {
		f.add("spec.shareProcessNamespace", "it does not go with hostPID")
	}
}

func (b *Bundle) validateSecurity(f *faults, field string, c *corev1.Container) {
	sc := c.SecurityContext
	field += ".securityContext"
	validateSeccomp(f, field+".seccompProfile", sc.SeccompProfile)
	validateAppArmor(f, field+".appArmorProfile", sc.AppArmorProfile)
	validateIDs(f, field, map[string]*int64{"runAsUser": sc.RunAsUser, "runAsGroup": sc.RunAsGroup})
	if p := sc.ProcMount; p != nil && *p != corev1.DefaultProcMount && *p != corev1.UnmaskedProcMount {
		f.add(field+".procMount", "%q is unknown", *p)
	}
	if no := sc.AllowPrivilegeEscalation; no != nil && !*no && isTrue(sc.Privileged) {
		f.add(field+".allowPrivilegeEscalation", "false does not go with privileged")
	}
}

// maxID is the greatest id that Kubernetes takes.
const maxID = 1<<31 - 1

func validateIDs(f *faults, field string, ids map[string]*int64) {
	for name, id := range ids {
		if id != nil && (*id < 0 || *id > maxID) {
			f.add(field+"."+name, "%d is not between 0 and %d", *id, maxID)
		}
	}
}

func validateSeccomp(f *faults, field string, p *corev1.SeccompProfile) {
	if p == nil {
		return
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined:
	case corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || !(path.IsAbs(*p.LocalhostProfile) || filepath.IsLocal(*p.LocalhostProfile)) {
			f.add(field+".localhostProfile", "want a file: absolute, or below the directory of profiles")
		}
	default:
		f.add(field+".type", "%q is unknown", p.Type)
	}
}

func validateAppArmor(f *faults, field string, p *corev1.AppArmorProfile) {
	if p == nil {
		return
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == "" {
			f.add(field+".localhostProfile", "want the name of a profile that the kernel has")
		}
	default:
		f.add(field+".type", "%q is unknown", p.Type)
	}
}

package security

import (
	"path"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// ValidatePod checks the security context of the pod.
func ValidatePod(f *document.Faults, pod *corev1.Pod) {
	spec := &pod.Spec
	sc, field := spec.SecurityContext, "spec.securityContext"
	validateSeccomp(f, field+".seccompProfile", sc.SeccompProfile)
	validateAppArmor(f, field+".appArmorProfile", sc.AppArmorProfile)
	validateIDs(f, field, map[string]*int64{"runAsUser": sc.RunAsUser, "runAsGroup": sc.RunAsGroup, "fsGroup": sc.FSGroup})
	for i, group := range sc.SupplementalGroups {
		validateIDs(f, field, map[string]*int64{"supplementalGroups[" + strconv.Itoa(i) + "]": &group})
	}
	if p := sc.SupplementalGroupsPolicy; p != nil && *p != corev1.SupplementalGroupsPolicyMerge && *p != corev1.SupplementalGroupsPolicyStrict {
		f.Add(field+".supplementalGroupsPolicy", "%q is neither Merge nor Strict", *p)
	}
	if p := sc.FSGroupChangePolicy; p != nil && *p != corev1.FSGroupChangeAlways && *p != corev1.FSGroupChangeOnRootMismatch {
		f.Add(field+".fsGroupChangePolicy", "%q is neither Always nor OnRootMismatch", *p)
	}
	if p := sc.SELinuxChangePolicy; p != nil && *p != corev1.SELinuxChangePolicyMountOption && *p != corev1.SELinuxChangePolicyRecursive {
		f.Add(field+".seLinuxChangePolicy", "%q is neither MountOption nor Recursive", *p)
	}
	if spec.HostUsers != nil && !*spec.HostUsers && (spec.HostPID || spec.HostIPC) {
		f.Add("spec.hostUsers", "false cannot be combined with hostPID or hostIPC")
	}
	if spec.HostPID && podspec.IsTrue(spec.ShareProcessNamespace) {
		f.Add("spec.shareProcessNamespace", "it cannot be combined with hostPID")
	}
}

// ValidateContainer checks the security context of the container that field leads to.
func ValidateContainer(f *document.Faults, field string, c *corev1.Container) {
	sc := c.SecurityContext
	field += ".securityContext"
	validateSeccomp(f, field+".seccompProfile", sc.SeccompProfile)
	validateAppArmor(f, field+".appArmorProfile", sc.AppArmorProfile)
	validateIDs(f, field, map[string]*int64{"runAsUser": sc.RunAsUser, "runAsGroup": sc.RunAsGroup})
	if p := sc.ProcMount; p != nil && *p != corev1.DefaultProcMount && *p != corev1.UnmaskedProcMount {
		f.Add(field+".procMount", "%q is unknown", *p)
	}
	if no := sc.AllowPrivilegeEscalation; no != nil && !*no && podspec.IsTrue(sc.Privileged) {
		f.Add(field+".allowPrivilegeEscalation", "false cannot be combined with privileged")
	}
}

// maxID is the greatest id that Kubernetes takes.
const maxID = 1<<31 - 1

func validateIDs(f *document.Faults, field string, ids map[string]*int64) {
	for name, id := range ids {
		if id != nil && (*id < 0 || *id > maxID) {
			f.Add(field+"."+name, "%d is not between 0 and %d", *id, maxID)
		}
	}
}

func validateSeccomp(f *document.Faults, field string, p *corev1.SeccompProfile) {
	if p == nil {
		return
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined:
	case corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || !(path.IsAbs(*p.LocalhostProfile) || filepath.IsLocal(*p.LocalhostProfile)) {
			f.Add(field+".localhostProfile", "want a file: absolute, or below the directory of profiles")
		}
	default:
		f.Add(field+".type", "%q is unknown", p.Type)
	}
}

func validateAppArmor(f *document.Faults, field string, p *corev1.AppArmorProfile) {
	if p == nil {
		return
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == "" {
			f.Add(field+".localhostProfile", "want the name of a profile that the kernel has")
		}
	default:
		f.Add(field+".type", "%q is unknown", p.Type)
	}
}

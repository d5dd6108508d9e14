package request

import (
	"maps"
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ControlsRuntime reports whether an annotation of a spec controls the runtime itself. The
// runtime sets properties of systemd units from such annotations (commands of the host's
// systemd among them) and options of CRIU, and passes "bundle" to hooks as the container's
// bundle. No request may have them, whatever an operator lets hooks see.
func ControlsRuntime(key string) bool {
	return strings.HasPrefix(key, "org.systemd.property.") || strings.HasPrefix(key, "org.criu.") || key == "bundle"
}

// PassedAnnotations are those whose names match one of the patterns of package path.
func PassedAnnotations(annotations map[string]string, patterns []string) map[string]string {
	passed := map[string]string{}
	for key, value := range annotations {
		if slices.ContainsFunc(patterns, func(pattern string) bool {
			ok, err := path.Match(pattern, key)
			return ok && err == nil
		}) && !ControlsRuntime(key) {
			passed[key] = value
		}
	}
	return passed
}

// AllAnnotations are the annotations of both requests, by which hooks are chosen. Those of the container win: a pod
// cannot change what the kubelet says of its containers.
func AllAnnotations(pod *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) map[string]string {
	all := make(map[string]string, len(pod.GetAnnotations())+len(container.GetAnnotations()))
	maps.Copy(all, pod.GetAnnotations())
	maps.Copy(all, container.GetAnnotations())
	return all
}

// IgnoredAnnotations are the annotations that ask a runtime for something and do not get it,
// sorted: Kubernetes' old ones for seccomp and AppArmor profiles, which the security context
// has replaced, CRI-O's except those that are allowed, and those that control the runtime.
func IgnoredAnnotations(annotations map[string]string, allowed []string) []string {
	var ignored []string
	for key := range annotations {
		name, _, _ := strings.Cut(key, "/")
		if ControlsRuntime(key) {
			ignored = append(ignored, key)
			continue
		}
		if (oldProfile(key) || strings.HasSuffix(name, ".crio.io") || strings.HasPrefix(key, "io.kubernetes.cri-o.") ||
			strings.HasPrefix(key, "seccomp-profile.kubernetes.cri-o.io") || key == "io.containers.trace-syscall") && !isAllowed(key, allowed) {
			ignored = append(ignored, key)
		}
	}
	slices.Sort(ignored)
	return ignored
}

func oldProfile(key string) bool {
	return key == "seccomp.security.alpha.kubernetes.io/pod" ||
		strings.HasPrefix(key, "container.seccomp.security.alpha.kubernetes.io/") ||
		strings.HasPrefix(key, "security.alpha.kubernetes.io/seccomp/") ||
		strings.HasPrefix(key, "container.apparmor.security.beta.kubernetes.io/")
}

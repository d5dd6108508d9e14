package request

import (
	"path"
	"slices"
	"strings"
)

// ControlsRuntime tells of annotations of a spec that the runtime itself obeys: it would set
// properties of systemd units (commands of the host's systemd among them) and CRIU's
// options, and take a container's bundle from "bundle" when it tells hooks about it. No
// request may have them, whatever an operator lets hooks see.
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

// IgnoredAnnotations are those that ask a runtime for something and do not get it, sorted:
// the ones by which Kubernetes once asked for seccomp and AppArmor profiles, whose place the
// security context has taken, CRI-O's but for those that are allowed, and those that would
// command the runtime itself. People should know.
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

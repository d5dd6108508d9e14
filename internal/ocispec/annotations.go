package ocispec

import (
	"path"
	"slices"
	"strings"
)

// PassedAnnotations are those whose names match one of the patterns of package path.
func PassedAnnotations(annotations map[string]string, patterns []string) map[string]string {
	passed := map[string]string{}
	for key, value := range annotations {
		if slices.ContainsFunc(patterns, func(pattern string) bool {
			ok, err := path.Match(pattern, key)
			return ok && err == nil
		}) {
			passed[key] = value
		}
	}
	return passed
}

// IgnoredAnnotations are those that ask a runtime for something and do not get it, sorted:
// the ones by which Kubernetes once asked for seccomp and AppArmor profiles, whose place the
// security context has taken, and CRI-O's but for those that are allowed. People should
// know.
func IgnoredAnnotations(annotations map[string]string, allowed []string) []string {
	var ignored []string
	for key := range annotations {
		name, _, _ := strings.Cut(key, "/")
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

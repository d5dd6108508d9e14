package ocispec

import (
	"slices"
	"strings"
)

// IgnoredAnnotations are those by which Kubernetes once asked for seccomp and
// AppArmor profiles, sorted. The security context has taken their place; a container
// does not get what they ask for, and people should know.
func IgnoredAnnotations(annotations map[string]string) []string {
	var ignored []string
	for key := range annotations {
		if key == "seccomp.security.alpha.kubernetes.io/pod" ||
			strings.HasPrefix(key, "container.seccomp.security.alpha.kubernetes.io/") ||
			strings.HasPrefix(key, "security.alpha.kubernetes.io/seccomp/") ||
			strings.HasPrefix(key, "container.apparmor.security.beta.kubernetes.io/") {
			ignored = append(ignored, key)
		}
	}
	slices.Sort(ignored)
	return ignored
}

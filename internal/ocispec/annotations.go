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

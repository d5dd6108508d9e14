package ocispec

import (
	"slices"
	"testing"
)

func TestIgnoredAnnotations(t *testing.T) {
	got := IgnoredAnnotations(map[string]string{
		"seccomp.security.alpha.kubernetes.io/pod":           "runtime/default",
		"container.seccomp.security.alpha.kubernetes.io/web": "unconfined",
		"container.apparmor.security.beta.kubernetes.io/web": "localhost/x",
		"example.com/note": "kept",
	})
	want := []string{
		"container.apparmor.security.beta.kubernetes.io/web",
		"container.seccomp.security.alpha.kubernetes.io/web",
		"seccomp.security.alpha.kubernetes.io/pod",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

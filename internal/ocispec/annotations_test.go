package ocispec

import (
	"maps"
	"slices"
	"testing"
)

func TestPassedAnnotations(t *testing.T) {
	got := PassedAnnotations(map[string]string{"example.org/a": "1", "example.org/b/c": "2", "example.org": "3", "other": "4"},
		[]string{"example.org/*", "oth?r", "["})
	if !maps.Equal(got, map[string]string{"example.org/a": "1", "other": "4"}) {
		t.Errorf("passed %v", got)
	}
}

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

package request

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPassedAnnotations(t *testing.T) {
	got := PassedAnnotations(map[string]string{"example.org/a": "1", "example.org/b/c": "2", "example.org": "3", "other": "4"},
		[]string{"example.org/*", "oth?r", "["})
	if !maps.Equal(got, map[string]string{"example.org/a": "1", "other": "4"}) {
		t.Errorf("passed %v", got)
	}
}

func TestIgnoredAnnotations(t *testing.T) {
	annotations := map[string]string{
		"seccomp.security.alpha.kubernetes.io/pod":           "runtime/default",
		"container.seccomp.security.alpha.kubernetes.io/web": "unconfined",
		"container.apparmor.security.beta.kubernetes.io/web": "localhost/x",
		"example.com/note":                    "kept",
		"crio.io/note":                        "kept",
		"umask.crio.io":                       "077",
		"cpu-quota.crio.io/web":               "disable",
		"link-logs.crio.io":                   "logs",
		"unified-cgroup.crio.io/web":          "memory.high=1",
		"io.kubernetes.cri-o.UnifiedCgroup.a": "memory.high=1",
		"io.kubernetes.cri-o.ShmSize":         "1Mi",
		"seccomp-profile.kubernetes.cri-o.io": "x",
		"io.containers.trace-syscall":         "of:/x",
	}
	all := []string{
		"container.apparmor.security.beta.kubernetes.io/web", "container.seccomp.security.alpha.kubernetes.io/web", "cpu-quota.crio.io/web",
		"io.containers.trace-syscall", "io.kubernetes.cri-o.ShmSize", "io.kubernetes.cri-o.UnifiedCgroup.a", "link-logs.crio.io",
		"seccomp-profile.kubernetes.cri-o.io", "seccomp.security.alpha.kubernetes.io/pod", "umask.crio.io", "unified-cgroup.crio.io/web",
	}
	if diff := cmp.Diff(all, IgnoredAnnotations(annotations, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got := IgnoredAnnotations(annotations, []string{CRIOUnified, CRIOLinkLogs})
	want := slices.DeleteFunc(slices.Clone(all), func(key string) bool {
		return strings.Contains(key, "nified") || strings.HasPrefix(key, "link-logs")
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with two that are allowed (-want +got):\n%s", diff)
	}
}

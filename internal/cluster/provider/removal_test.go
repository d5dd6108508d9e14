package provider

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestRemovalDoesNotWait: podman would give each node ten seconds to end.
func TestRemovalDoesNotWait(t *testing.T) {
	for at, want := range map[string]string{
		"podman 4.3.1": "rm -f -v -t 0 a b", "podman 3.4.4": "rm -f -v a b", "docker 20.10.24": "rm -f -v a b", "nerdctl 2.0.0": "rm -f -v a b",
	} {
		tool, number, _ := strings.Cut(at, " ")
		d, err := dialectOf(tool)
		if err != nil {
			t.Fatal(err)
		}
		e := &Engine{dialect: d, version: version.MustParseGeneric(number)}
		if got := strings.Join(e.removal("a", "b"), " "); got != want {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
}

package imagecmd

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPulledNameHasItsRegistry(t *testing.T) {
	img := &runtimeapi.Image{
		RepoTags: []string{"docker.io/library/app:1", "registry.test/app:1", "registry.test/app:2", "registry.test/team/app:1"},
	}
	for ref, want := range map[string][]string{
		"app:1":               {"docker.io/library/app:1", "registry.test/app:1"},
		"app:2":               {"registry.test/app:2"},
		"team/app:1":          {"registry.test/team/app:1"},
		"app":                 {"app"},
		"registry.test/app:1": {"registry.test/app:1"},
	} {
		if got := fullNames(ref, img); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", ref, got, want)
		}
	}
}

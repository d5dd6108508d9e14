package snapshotters

import (
	"testing"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestChains: all by which a snapshotter finds the content of a layer, and of those below, is in its name, and nothing else.
func TestChains(t *testing.T) {
	of := func(blob string, annotations map[string]string) imagespec.Descriptor {
		return imagespec.Descriptor{Digest: digest.FromString(blob), Annotations: annotations}
	}
	toc := func(value string) map[string]string {
		return map[string]string{"containerd.io/snapshot/stargz/toc.digest": value}
	}
	top := TopChain([]imagespec.Descriptor{of("low", nil), of("high", toc("a"))})
	for what, layers := range map[string][]imagespec.Descriptor{
		"another blob":             {of("low", nil), of("other", toc("a"))},
		"another annotation":       {of("low", nil), of("high", toc("b"))},
		"no annotation":            {of("low", nil), of("high", nil)},
		"another layer below":      {of("other", nil), of("high", toc("a"))},
		"another annotation below": {of("low", toc("a")), of("high", toc("a"))},
		"no layer below":           {of("high", toc("a"))},
	} {
		if TopChain(layers) == top {
			t.Errorf("%s: the same chain", what)
		}
	}
	same := toc("a")
	same["org.opencontainers.image.title"] = "x"
	if got := TopChain([]imagespec.Descriptor{of("low", map[string]string{}), of("high", same)}); got != top {
		t.Errorf("annotations that are not for snapshotters: %s, want %s", got, top)
	}
	if err := digest.Digest(top).Validate(); err != nil {
		t.Error(err)
	}
}

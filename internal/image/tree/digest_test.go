package tree

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// The digest of an index, a manifest or a config is checked before the content is looked up.
func TestHostileDigestsInManifests(t *testing.T) {
	good := digest.FromString("x")
	host := platforms.DefaultSpec()
	encode := func(value any) []byte {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, text := range imagetest.HostileDigests() {
		bad := digest.Digest(text)
		chain := func(index, config, layer, diffID digest.Digest) [][]byte {
			return [][]byte{
				encode(imagespec.Index{MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{
					{MediaType: imagespec.MediaTypeImageManifest, Digest: index, Size: 1, Platform: &host},
				}}),
				encode(imagespec.Manifest{
					MediaType: imagespec.MediaTypeImageManifest, Config: imagespec.Descriptor{Digest: config, Size: 1},
					Layers: []imagespec.Descriptor{{MediaType: imagespec.MediaTypeImageLayer, Digest: layer, Size: 1}},
				}),
				encode(imagespec.Image{Platform: host, RootFS: imagespec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}}}),
			}
		}
		for place, c := range map[string]struct {
			target digest.Digest
			left   [][]byte
		}{
			"the target":         {bad, chain(good, good, good, good)},
			"an index":           {good, chain(bad, good, good, good)},
			"a manifest":         {good, chain(good, bad, good, good)},
			"a layer":            {good, chain(good, good, bad, good)},
			"the id of contents": {good, chain(good, good, good, bad)},
			"none of them":       {good, chain(good, good, good, good)},
		} {
			r := Reader{Content: &documents{left: c.left}, Platform: platforms.Default()}
			tree, err := r.Read(t.Context(), "x", imagespec.Descriptor{MediaType: imagespec.MediaTypeImageIndex, Digest: c.target, Size: 1},
				func(_ context.Context, desc imagespec.Descriptor) error {
					if desc.Digest != good {
						t.Errorf("%q in %s is asked for as %q", text, place, desc.Digest)
					}
					return nil
				})
			if place == "none of them" {
				if err != nil {
					t.Fatal(err)
				}
				continue
			}
			if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Unsupported) {
				t.Errorf("%q in %s became %+v, %v", text, place, tree, err)
			}
		}
	}
}

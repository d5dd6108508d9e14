package image

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// hostile are digests that lead out of a directory of blobs, or that other tools read in
// another way.
func hostile() []string {
	hex := strings.Repeat("a", 64)
	return []string{
		"sha256:../../x", "sha256:../../../../../../etc/passwd", "sha256:/etc/passwd", "../sha256:" + hex, "sha256/../..:" + hex,
		"sha256:" + strings.ToUpper(hex), "SHA256:" + hex, "sha256:" + hex[1:], "sha256:" + hex + "a", "sha256:" + hex[2:] + "/x",
		"sha256:" + hex + "\n", " sha256:" + hex, "sha256:" + hex[1:] + "\x00", "sha256:" + hex[3:] + "%2f", "sha256:", ":", ":" + hex, hex,
		"sha1:" + hex[:40], "md5:" + hex[:32], "sha256+b64:" + hex, "sha512:" + hex, ".:" + hex, "..:..", "sha256:sha256:" + hex,
	}
}

func TestHostileDigestsInReferences(t *testing.T) {
	for _, text := range hostile() {
		if text == strings.Repeat("a", 64) {
			continue // which is an id, and a repository's name nowhere
		}
		named, err := parseName("registry.test/app@" + text)
		if err == nil || !errors.Is(err, errs.Invalid) {
			t.Errorf("reference with %q became %v, %v", text, named, err)
		}
		if id, ok := idPrefix(text); ok && !isID(id) {
			t.Errorf("%q became the id %q", text, id)
		}
	}
}

// A digest of an index, a manifest or a config is checked before anybody looks for it.
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
	for _, text := range hostile() {
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
			s := &Images{content: &documents{left: c.left}, platform: platforms.Default(), cfg: Config{Root: "/root"}}
			tree, err := s.readTree(t.Context(), "x", imagespec.Descriptor{MediaType: imagespec.MediaTypeImageIndex, Digest: c.target, Size: 1},
				func(_ context.Context, desc imagespec.Descriptor) error {
					if path := s.blobPath(desc.Digest); path != filepath.Join("/root/content/blobs/sha256", good.Encoded()) {
						t.Errorf("%q in %s became the path %s", text, place, path)
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

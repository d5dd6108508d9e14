package tree

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// TestKeysHaveOneMeaning: a document that two readers understand differently is refused.
func TestKeysHaveOneMeaning(t *testing.T) {
	for document, refused := range map[string]bool{
		`{"a":1,"b":[{"a":2},{"a":3}],"c":{"a":"a"}}`: false,
		`{"a":"b","b":"a"}`:                           false,
		`{"":"","a":""}`:                              false,
		`["a","a"]`:                                   false,
		`{"config":{"Labels":{"a":"1","A":"2"}}}`:     false,
		`{"annotations":{"a":"1","A":"2"}}`:           false,
		`{"config":{"Volumes":{"/a":{},"/A":{}},"ExposedPorts":{"1/tcp":{}}}}`: false,
		`{"layers":[],"layers":[]}`:                         true,
		`{"layers":[],"Layers":[]}`:                         true,
		`{"layers":[],"layerſ":[]}`:                         true,
		`{"layers":[],"l\u0061yers":[]}`:                    true,
		`{"b":[{"c":{"digest":"1","DIGEST":"2"}}]}`:         true,
		`{"annotations":{"a":"1","a":"2"}}`:                 true,
		`{"annotations":{"x":"1"},"Annotations":{"x":"2"}}`: true,
	} {
		if err := CheckKeys([]byte(document)); (err != nil) != refused || err != nil && !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", document, err)
		}
	}
}

// TestFormsAreDistinct: an index does not pass for a manifest (CVE-2021-41190). The store still reads documents that it took before.
func TestFormsAreDistinct(t *testing.T) {
	const index, manifest = imagespec.MediaTypeImageIndex, imagespec.MediaTypeImageManifest
	for _, c := range []struct{ mediaType, document, want string }{
		{index, `{"manifests":[{}],"layers":[{}]}`, "those of a manifest"},
		{manifest, `{"manifests":[{}],"config":{}}`, "those of a manifest"},
		{"", `{"manifests":[{}],"fsLayers":[{}]}`, "those of a manifest"},
		{index, `{"layers":[{}]}`, "other fields"},
		{manifest, `{"manifests":[{}]}`, "other fields"},
		{"", `{"mediaType":"` + manifest + `","manifests":[{}]}`, "other fields"},
		{index, `{"mediaType":"` + manifest + `"}`, "says that it is"},
		{manifest, `{"mediaType":"` + index + `"}`, "says that it is"},
		{manifest, `[]`, "neither an index nor a manifest"},
		{manifest, `{"config":{},"config":{}}`, "in one object"},
	} {
		for _, known := range []bool{false, true} {
			r := Reader{Content: &documents{left: [][]byte{[]byte(c.document)}}, Platform: platforms.Default(), Known: known}
			target := imagespec.Descriptor{MediaType: c.mediaType, Digest: digest.FromString("x"), Size: 1}
			_, err := r.Read(t.Context(), "app:1", target, func(context.Context, imagespec.Descriptor) error { return nil })
			if refused := err != nil && strings.Contains(err.Error(), c.want); refused == known || !known && !errors.Is(err, errs.Invalid) {
				t.Errorf("%q %s, known %v: %v", c.mediaType, c.document, known, err)
			}
		}
	}
}

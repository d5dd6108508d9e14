package tree

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
)

// documents is a content store that returns one document after the other for any digest, so that
// digests do not stop the fuzzer.
type documents struct {
	content.Store
	left [][]byte
}

func (d *documents) ReaderAt(context.Context, imagespec.Descriptor) (content.ReaderAt, error) {
	if len(d.left) == 0 {
		return nil, fmt.Errorf("no document is left: %w", errs.Invalid)
	}
	document := d.left[0]
	d.left = d.left[1:]
	return blob{bytes.NewReader(document)}, nil
}

type blob struct{ *bytes.Reader }

func (blob) Close() error { return nil }

// FuzzTree: with any index, manifest and config from a registry or an archive, an image is refused
// with an error that blames its source. Otherwise it is for this node, and has an id, a size, and a
// name for each of its snapshots.
func FuzzTree(f *testing.F) {
	host := platforms.DefaultSpec()
	sum := digest.FromString("x")
	desc := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: sum, Size: 1, Platform: &host}
	layer := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayerGzip, Digest: sum, Size: 1}
	encode := func(value any) []byte {
		data, err := json.Marshal(value)
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	index := encode(imagespec.Index{MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{
		{MediaType: imagespec.MediaTypeImageManifest, Digest: sum, Size: 1},
		desc,
		{MediaType: imagespec.MediaTypeImageManifest, Digest: sum, Size: 1, Platform: &imagespec.Platform{OS: "linux", Architecture: "s390x"}},
	}})
	config := encode(imagespec.Image{
		Platform: host, RootFS: imagespec.RootFS{Type: "layers", DiffIDs: []digest.Digest{sum}},
		Config: imagespec.ImageConfig{User: "1:2", Env: []string{"A=b"}, Entrypoint: []string{"/x"}, Volumes: map[string]struct{}{"/v": {}}, StopSignal: "9"},
	})
	manifest := func(config digest.Digest, layers ...imagespec.Descriptor) []byte {
		return encode(imagespec.Manifest{
			MediaType: imagespec.MediaTypeImageManifest, Config: imagespec.Descriptor{Digest: config, Size: 1}, Layers: layers,
		})
	}
	huge := layer
	huge.Size = 1<<63 - 1
	f.Add(imagespec.MediaTypeImageIndex, index, manifest(sum, layer), config)
	f.Add("", index, manifest(digest.SHA512.FromString("x"), layer), config)
	f.Add("application/vnd.docker.distribution.manifest.v2+json", manifest(sum, huge), bytes.Replace(config, []byte(`_ids":[`), []byte(`_ids":["`+sum.String()+`",`), 1), []byte(`{}`))
	f.Add("", []byte(`{"manifests":[null,{"platform":{}}]}`), []byte(`{"config":{},"layers":[null]}`), []byte(`{"rootfs":{"diff_ids":[null]}}`))
	title := func(name string) imagespec.Descriptor {
		return imagespec.Descriptor{MediaType: "a/b", Digest: sum, Size: 1, Annotations: map[string]string{imagespec.AnnotationTitle: name}}
	}
	f.Add(imagespec.MediaTypeImageManifest, encode(imagespec.Manifest{
		ArtifactType: "a/b", Config: imagespec.DescriptorEmptyJSON, Layers: []imagespec.Descriptor{title("a/b"), title("c"), layer},
	}), []byte(`{}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, mediaType string, first, second, third []byte) {
		store := &documents{left: [][]byte{first, second, third}}
		target := imagespec.Descriptor{MediaType: mediaType, Digest: sum, Size: 1}
		tree, err := Reader{Content: store, Platform: platforms.Default()}.Read(t.Context(), "x", target, func(context.Context, imagespec.Descriptor) error { return nil })
		if err != nil {
			if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Unsupported) {
				t.Errorf("%v blames nobody", err)
			}
			return
		}
		if !names.IsID(tree.ID()) || tree.Size() < 0 {
			t.Errorf("an image has the id %q and the size %d", tree.ID(), tree.Size())
		}
		chains := tree.Chains()
		if tree.Artifact != nil {
			wantSafe(t, tree)
			return
		}
		if len(chains) != len(tree.Layers) || slices.Contains(chains, "") {
			t.Errorf("%d layers have the snapshots %q", len(tree.Layers), chains)
		}
	})
}

// wantSafe: an artifact is complete, and its files are below the directory that a container mounts.
func wantSafe(t *testing.T, tree *Tree) {
	t.Helper()
	if tree.Artifact.Type == "" || len(tree.Chains()) != 1 || tree.TopChain() != tree.Chains()[0] || tree.SizeOf(0) > tree.Size()*MaxLayers {
		t.Errorf("artifact %+v with the snapshots %q", tree.Artifact, tree.Chains())
	}
	for i, file := range tree.Artifact.Files {
		if !filepath.IsLocal(file.Name) || filepath.Clean(file.Name) != file.Name || strings.Contains(file.Name, "\x00") {
			t.Errorf("a file has the name %q", file.Name)
		}
		for _, other := range tree.Artifact.Files[i+1:] {
			if file.Name == other.Name || strings.HasPrefix(other.Name, file.Name+"/") || strings.HasPrefix(file.Name, other.Name+"/") {
				t.Errorf("files have the names %q and %q", file.Name, other.Name)
			}
		}
	}
}

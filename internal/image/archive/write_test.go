package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// saved builds an image in a store, with an index above its manifest.
func saved(t *testing.T, store *memory, text string, names ...string) Saved {
	t.Helper()
	img, err := imagetest.Build(imagetest.Spec{Files: []imagetest.File{{Path: "f", Content: []byte(text)}}})
	if err != nil {
		t.Fatal(err)
	}
	index, err := json.Marshal(imagespec.Index{MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{
		{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromString("for another platform"), Size: 7}, img.Manifest.Descriptor,
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := Saved{
		Manifest: img.Manifest.Descriptor, Config: img.Config.Descriptor, Platform: imagespec.Platform{OS: "linux", Architecture: "amd64"},
		Indexes: []imagespec.Descriptor{{MediaType: imagespec.MediaTypeImageIndex, Digest: digest.FromBytes(index), Size: int64(len(index))}},
	}
	store.blobs[s.Indexes[0].Digest] = index
	for _, blob := range append([]imagetest.Blob{img.Manifest, img.Config}, img.Layers...) {
		store.blobs[blob.Digest] = blob.Data
	}
	for _, layer := range img.Layers {
		s.Layers = append(s.Layers, layer.Descriptor)
	}
	for _, name := range names {
		name = strings.NewReplacer("@manifest", "@"+s.Manifest.Digest.String(), "@index", "@"+s.Indexes[0].Digest.String()).Replace(name)
		named, err := reference.ParseDockerRef(name)
		if err != nil {
			t.Fatal(err)
		}
		s.Names = append(s.Names, named)
	}
	return s
}

// TestWrite: what is written can be read with the same names, also those with digests, and is the same whatever the order and
// wherever the descriptors come from.
func TestWrite(t *testing.T) {
	store := &memory{blobs: map[digest.Digest][]byte{}, open: map[string]bool{}}
	one := saved(t, store, "one", "r.example/one:1", "r.example/one@manifest")
	byIndex := saved(t, store, "one", "r.example/one@index", "r.example/one:1", "r.example/one:0")
	two, nameless := saved(t, store, "two", "two:2"), saved(t, store, "three")
	other := two
	other.Manifest.Annotations = map[string]string{"containerd.io/distribution.source.r.example": "two"}
	var first, second bytes.Buffer
	for to, all := range map[*bytes.Buffer][]Saved{&first: {one, byIndex, two, nameless}, &second: {nameless, other, byIndex, one, two}} {
		if err := Write(context.Background(), store, to, all); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the archives differ")
	}
	if text := first.String(); !strings.Contains(text, `"RepoTags":["r.example/one:0","r.example/one:1"]`) || strings.Contains(text, "distribution.source") {
		t.Error("the names for docker are others, or the archive says where it comes from")
	}
	got := &memory{blobs: map[digest.Digest][]byte{}, open: map[string]bool{}}
	found, err := Read(context.Background(), got, &first, Limits{Bytes: 1 << 20}, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, img := range found {
		for _, name := range img.Names {
			names = append(names, name.String()+" "+img.Target.Digest.Encoded()[:8])
		}
		if len(img.Names) == 0 {
			names = append(names, " "+img.Target.Digest.Encoded()[:8])
		}
		if got.blobs[img.Target.Digest] == nil {
			t.Errorf("%s is missing", img.Target.Digest)
		}
	}
	slices.Sort(names)
	manifest, index := one.Manifest.Digest, one.Indexes[0].Digest
	want := []string{
		" " + nameless.Manifest.Digest.Encoded()[:8], "docker.io/library/two:2 " + two.Manifest.Digest.Encoded()[:8],
		"r.example/one:0 " + manifest.Encoded()[:8], "r.example/one:1 " + manifest.Encoded()[:8],
		"r.example/one@" + manifest.String() + " " + manifest.Encoded()[:8], "r.example/one@" + index.String() + " " + index.Encoded()[:8],
	}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if _, there := got.blobs[two.Indexes[0].Digest]; there {
		t.Error("an index that no name asks for is written")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Write(ctx, store, &first, []Saved{one}); err == nil {
		t.Error("a cancelled write succeeds")
	}
	delete(store.blobs, one.Config.Digest)
	if err := Write(context.Background(), store, &first, []Saved{one}); err == nil {
		t.Error("Write succeeds although a blob is missing")
	}
}

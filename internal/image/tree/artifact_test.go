package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// readDocuments reads the tree of a manifest, whose config follows it.
func readDocuments(t *testing.T, left ...[]byte) (*Tree, error) {
	t.Helper()
	r := Reader{Content: &documents{left: left}, Platform: platforms.Default()}
	target := imagespec.Descriptor{Digest: digest.FromBytes(left[0]), Size: 1}
	return r.Read(t.Context(), "x", target, func(context.Context, imagespec.Descriptor) error { return nil })
}

func readSpec(t *testing.T, spec imagetest.ArtifactSpec) (*Tree, error) {
	t.Helper()
	a, err := imagetest.Artifact(spec)
	if err != nil {
		t.Fatal(err)
	}
	return readDocuments(t, a.Manifest.Data, a.Config.Data)
}

// TestKindsOfArtifacts: what makes a manifest that of an artifact, and what its type is.
func TestKindsOfArtifacts(t *testing.T) {
	one := []imagetest.ArtifactFile{{Title: "f", Content: "x"}}
	asLayer := []imagetest.ArtifactFile{{Title: "f", Content: "x", MediaType: imagespec.MediaTypeImageLayer}}
	for name, c := range map[string]struct {
		spec imagetest.ArtifactSpec
		want string
	}{
		"an empty config":                   {imagetest.ArtifactSpec{Type: "a/b", Files: one}, "a/b"},
		"an empty config and no type":       {imagetest.ArtifactSpec{Files: one}, imagespec.MediaTypeEmptyJSON},
		"a config of its own":               {imagetest.ArtifactSpec{ConfigType: "application/vnd.cncf.helm.config.v1+json", Files: one}, "application/vnd.cncf.helm.config.v1+json"},
		"a type, and the config of images":  {imagetest.ArtifactSpec{Type: "a/c", ConfigType: imagespec.MediaTypeImageConfig, Files: one}, "a/c"},
		"files that claim to be layers":     {imagetest.ArtifactSpec{ConfigType: "application/vnd.unknown.config.v1+json", Files: asLayer}, "application/vnd.unknown.config.v1+json"},
		"an empty config above such layers": {imagetest.ArtifactSpec{Files: asLayer}, imagespec.MediaTypeEmptyJSON},
		"no layers":                         {imagetest.ArtifactSpec{Type: "a/d"}, "a/d"},
	} {
		got, err := readSpec(t, c.spec)
		if err != nil || got.Artifact == nil || got.Artifact.Type != c.want || len(got.Artifact.Files) != len(c.spec.Files) || got.ID() != got.Manifest.Digest.String() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := readSpec(t, imagetest.ArtifactSpec{Type: "a\x1b[2J", Files: one}); !errors.Is(err, errs.Invalid) {
		t.Errorf("a type with control characters: %v", err)
	}
}

// TestImagesAreNoArtifacts: an image stays one, whatever type it has, and whatever its builder calls its config.
func TestImagesAreNoArtifacts(t *testing.T) {
	img, err := imagetest.Build(imagetest.Spec{Layers: []imagetest.Layer{{{Path: "f"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m *imagespec.Manifest){
		"an artifact type":         func(m *imagespec.Manifest) { m.ArtifactType = "a/b" },
		"a config without a type":  func(m *imagespec.Manifest) { m.Config.MediaType = "" },
		"a config of another type": func(m *imagespec.Manifest) { m.Config.MediaType = "application/octet-stream" },
		"Docker's manifest": func(m *imagespec.Manifest) {
			m.MediaType = "application/vnd.docker.distribution.manifest.v2+json"
			m.Config.MediaType = "application/octet-stream"
		},
	} {
		var m imagespec.Manifest
		if err := json.Unmarshal(img.Manifest.Data, &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readDocuments(t, data, img.Config.Data); err != nil || got.Artifact != nil || got.ID() != img.ID() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestSignatureBesideImagesForOthers: the node gets no signature in the place of an image that is for other nodes.
func TestSignatureBesideImagesForOthers(t *testing.T) {
	a, err := imagetest.Artifact(imagetest.ArtifactSpec{Type: "a/signature", Files: []imagetest.ArtifactFile{{Title: "f", Content: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	foreign := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 1, Platform: &imagespec.Platform{OS: "linux", Architecture: "s390x"}}
	for name, list := range map[string][]imagespec.Descriptor{"beside an image": {foreign, a.Manifest.Descriptor}, "alone": {a.Manifest.Descriptor}} {
		index, err := json.Marshal(imagespec.Index{MediaType: imagespec.MediaTypeImageIndex, Manifests: list})
		if err != nil {
			t.Fatal(err)
		}
		got, err := readDocuments(t, index, a.Manifest.Data)
		if len(list) > 1 && !errors.Is(err, errs.Unsupported) || len(list) == 1 && (err != nil || got.Artifact == nil || got.ID() != a.Manifest.Digest.String()) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestHostileNamesInArtifacts(t *testing.T) {
	for _, c := range []struct {
		titles []string
		want   string
	}{
		{[]string{"a", "../b"}, `layer 1 (sha256:`},
		{[]string{"../b"}, "leads out of the directory"},
		{[]string{"a/../../b"}, "leads out of the directory"},
		{[]string{"a/../b"}, "leads out of the directory"},
		{[]string{".."}, "leads out of the directory"},
		{[]string{"/etc/passwd"}, "is absolute"},
		{[]string{"a//b"}, "is not a clean path"},
		{[]string{"./a"}, "is not a clean path"},
		{[]string{"a/"}, "is not a clean path"},
		{[]string{"."}, "is not a clean path"},
		{[]string{"a\x00b"}, "has control characters"},
		{[]string{"a\nb"}, "has control characters"},
		{[]string{strings.Repeat("x", 256)}, "has a part of more than 255 bytes"},
		{[]string{strings.Repeat("x/", 600) + "x"}, "at most 1024 are taken"},
		{[]string{strings.Repeat("x/", 32) + "x"}, "has 33 parts"},
		{[]string{"a", "b", "a"}, `layers 0 and 2 have the same name "a"`},
		{[]string{"a/b/c", "a/b"}, `layer 1 is the file "a/b", and layer 0 has a name below it`},
		{[]string{"...", "a/..b", ".wh.a", "ä/ö", "a b", `\..\c`, strings.Repeat("x", 255), strings.Repeat("x/", 31) + "x"}, ""},
	} {
		spec := imagetest.ArtifactSpec{Type: "a/b"}
		for n, title := range c.titles {
			spec.Files = append(spec.Files, imagetest.ArtifactFile{Title: title, Content: fmt.Sprint(n)})
		}
		_, err := readSpec(t, spec)
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.titles, err)
			}
			continue
		}
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.titles, err, c.want)
		}
	}
}

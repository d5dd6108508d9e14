//go:build integration && e2e

package trees

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"maps"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/local"
)

// Media types of layers that were never to be pushed. The library marks its constants as deprecated.
const (
	foreign     = "application/vnd.oci.image.layer.nondistributable.v1.tar"
	foreignGzip = foreign + "+gzip"
	foreignZstd = foreign + "+zstd"
	foreignOld  = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
	dockerGzip  = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// gzipped compresses a layer as several members.
func gzipped(t *testing.T, layer []byte, members int) []byte {
	t.Helper()
	var buf bytes.Buffer
	for part := range slices.Chunk(layer, len(layer)/members+1) {
		w := gzip.NewWriter(&buf)
		_, err := w.Write(part)
		must(t, err)
		must(t, w.Close())
	}
	return buf.Bytes()
}

// zstdOf compresses a layer as several frames, with one without content before each.
func zstdOf(t *testing.T, layer []byte, frames int) []byte {
	t.Helper()
	var buf bytes.Buffer
	encoder, err := zstd.NewWriter(nil)
	must(t, err)
	for part := range slices.Chunk(layer, len(layer)/frames+1) {
		if frames > 1 {
			buf.WriteString("\x50\x2a\x4d\x18\x04\x00\x00\x00skip")
		}
		buf.Write(encoder.EncodeAll(part, nil))
	}
	return buf.Bytes()
}

// forms are the ways in which the layers of one image are stored.
func forms(t *testing.T) map[string]func(i int, layer []byte) imagetest.Blob {
	as := func(mediaType string, data []byte) imagetest.Blob { return imagetest.NewBlob(mediaType, data) }
	withURLs := func(blob imagetest.Blob) imagetest.Blob {
		blob.URLs = []string{"http://127.0.0.1:1/elsewhere"}
		return blob
	}
	return map[string]func(i int, layer []byte) imagetest.Blob{
		"plain":               nil,
		"gzip":                func(_ int, l []byte) imagetest.Blob { return as(imagespec.MediaTypeImageLayerGzip, gzipped(t, l, 1)) },
		"gzip of members":     func(_ int, l []byte) imagetest.Blob { return as(imagespec.MediaTypeImageLayerGzip, gzipped(t, l, 7)) },
		"zstd":                func(_ int, l []byte) imagetest.Blob { return as(imagespec.MediaTypeImageLayerZstd, zstdOf(t, l, 1)) },
		"zstd of frames":      func(_ int, l []byte) imagetest.Blob { return as(imagespec.MediaTypeImageLayerZstd, zstdOf(t, l, 7)) },
		"docker":              func(_ int, l []byte) imagetest.Blob { return as(dockerGzip, gzipped(t, l, 1)) },
		"foreign":             func(_ int, l []byte) imagetest.Blob { return withURLs(as(foreign, l)) },
		"foreign gzip":        func(_ int, l []byte) imagetest.Blob { return withURLs(as(foreignGzip, gzipped(t, l, 1))) },
		"foreign zstd":        func(_ int, l []byte) imagetest.Blob { return withURLs(as(foreignZstd, zstdOf(t, l, 1))) },
		"foreign of docker":   func(_ int, l []byte) imagetest.Blob { return withURLs(as(foreignOld, gzipped(t, l, 1))) },
		"other than the type": func(_ int, l []byte) imagetest.Blob { return as(imagespec.MediaTypeImageLayerGzip, zstdOf(t, l, 1)) },
		"each layer another": func(i int, l []byte) imagetest.Blob {
			switch i % 3 {
			case 0:
				return as(imagespec.MediaTypeImageLayerGzip, gzipped(t, l, 2))
			case 1:
				return as(imagespec.MediaTypeImageLayerZstd, zstdOf(t, l, 2))
			}
			return as(imagespec.MediaTypeImageLayer, l)
		},
	}
}

// formLayers are layers with deletions, an empty one, and one twice.
func formLayers(t *testing.T) [][]byte {
	t.Helper()
	top := layer(t, whiteout("a"), opaque("d"), file("d/new", "n"), hardlink("d/again", "d/new"))
	return [][]byte{
		layer(t, dir(".", 0o711), file("a", strings.Repeat("low", 50_000)), dir("d", 0o751).owner(7, 8), file("d/x", "x").xattr("user.k", "v"), symlink("s", "d"), device("p", tar.TypeFifo, 0, 0)),
		layer(t), top, layer(t, file("a", "again"), file("d/x", "again")), top,
	}
}

// pulled serves a registry to a store of its own, and returns what a container of base:1 sees.
func pulled(t *testing.T, r *imagetest.Registry) map[string]imagetest.Node {
	t.Helper()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	s := store(t, local.AutoSnapshotter)
	id, err := s.Pull(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/base:1", image.Auth{}, nil)
	must(t, err)
	return treeOf(t, prepared(t, s, id))
}

// TestTreesOfForms imports and pulls one image in all forms of its layers.
func TestTreesOfForms(t *testing.T) {
	layers := formLayers(t)
	tree, err := umoci(t, layout(t, archiveOf(t, imageOf(t, layers, nil))), "t")
	must(t, err)
	want := treeOf(t, tree)
	all := forms(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			img := imageOf(t, layers, all[name])
			root, err := imported(t, store(t, local.AutoSnapshotter), archiveOf(t, img))
			must(t, err)
			report(t, t.Name(), differences(treeOf(t, root), want, began, describedBy(t, layers)), nil)
			r := &imagetest.Registry{}
			r.Push("base", "1", img)
			report(t, t.Name(), differences(pulled(t, r), want, began, describedBy(t, layers)), nil)
		})
	}
}

// TestTreesOfIndexes pulls an image by way of indexes, with referrers and attestations beside it.
func TestTreesOfIndexes(t *testing.T) {
	layers := formLayers(t)
	img := imageOf(t, layers, nil)
	tree, err := umoci(t, layout(t, archiveOf(t, img)), "t")
	must(t, err)
	want := treeOf(t, tree)
	other := imageOf(t, [][]byte{layer(t, file("other", "x"))}, nil)
	here, elsewhere := &imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}, &imagespec.Platform{OS: "linux", Architecture: "s390x"}
	referrer, err := imagetest.Artifact(imagetest.ArtifactSpec{Type: "application/vnd.example.signature", Files: []imagetest.ArtifactFile{{Title: "sig", Content: "x"}}, Subject: &img.Manifest.Descriptor})
	must(t, err)
	for name, manifests := range map[string][]imagespec.Descriptor{
		"platforms":    {of(other, elsewhere), of(img, here)},
		"attestations": {of(other, &imagespec.Platform{OS: "unknown", Architecture: "unknown"}), of(img, here)},
		"referrers":    {withType(of(referrer, nil)), of(img, here)},
		"no platform":  {of(img, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, nested := range []bool{false, true} {
				r := &imagetest.Registry{}
				for _, each := range []*imagetest.Image{other, img, referrer} {
					r.Push("base", "", each)
				}
				index := indexOf(t, manifests...)
				if nested {
					r.PushManifest("base", "", index)
					index = indexOf(t, of(other, elsewhere), index.Descriptor)
				}
				r.PushManifest("base", "1", index)
				report(t, t.Name(), differences(pulled(t, r), want, began, describedBy(t, layers)), nil)
			}
		})
	}
	t.Run("an image about another", func(t *testing.T) {
		var manifest imagespec.Manifest
		must(t, json.Unmarshal(img.Manifest.Data, &manifest))
		manifest.Subject = &other.Manifest.Descriptor
		document, err := json.Marshal(manifest)
		must(t, err)
		about := *img
		about.Manifest = imagetest.NewBlob(imagespec.MediaTypeImageManifest, document)
		r := &imagetest.Registry{}
		r.Push("base", "1", &about)
		report(t, t.Name(), differences(pulled(t, r), want, began, describedBy(t, layers)), nil)
	})
	t.Run("an artifact", func(t *testing.T) {
		r := &imagetest.Registry{}
		r.Push("base", "1", referrer)
		tree := pulled(t, r)
		if len(tree) != 2 || tree["sig"]["content"] == "" || tree["sig"]["mode"] != "100644" || tree["sig"]["owner"] != "0:0" {
			t.Errorf("an artifact is a directory of its files: %v", tree)
		}
	})
}

func of(img *imagetest.Image, platform *imagespec.Platform) imagespec.Descriptor {
	desc := img.Manifest.Descriptor
	desc.Platform = platform
	return desc
}

func withType(desc imagespec.Descriptor) imagespec.Descriptor {
	desc.ArtifactType = "application/vnd.example.signature"
	return desc
}

func indexOf(t *testing.T, manifests ...imagespec.Descriptor) imagetest.Blob {
	t.Helper()
	document, err := json.Marshal(imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex, Manifests: manifests})
	must(t, err)
	return imagetest.NewBlob(imagespec.MediaTypeImageIndex, document)
}

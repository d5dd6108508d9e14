//go:build integration

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/hostileimage"
)

const (
	pathLesson      = "containerd CVE-2025-47290, k3s CVE-2026-54250"
	ambiguousLesson = "OCI CVE-2021-41190"
	digestLesson    = "containers/image CVE-2024-3727"
	bombLesson      = "decompression bombs"
	memoryLesson    = "containerd CVE-2026-47262"
)

// innocent is an image that is in order, of which cases change one thing.
func innocent(t *testing.T) *imagetest.Image {
	t.Helper()
	img, err := imagetest.Build(imagetest.Spec{Name: "app:1", Files: []imagetest.File{{Path: "f", Content: []byte("of the image")}}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// with is a JSON blob with further fields.
func with(b imagetest.Blob, fields string) imagetest.Blob {
	return imagetest.NewBlob(b.MediaType, append(bytes.TrimSuffix(bytes.Clone(b.Data), []byte("}")), ","+fields+"}"...))
}

// described is a descriptor as JSON, with further fields.
func described(b imagetest.Blob, fields string) string {
	data, err := json.Marshal(b.Descriptor)
	if err != nil {
		panic(err)
	}
	if fields != "" {
		return string(data[:len(data)-1]) + "," + fields + "}"
	}
	return string(data)
}

func indexOf(descriptors ...string) string {
	return `{"schemaVersion":2,"manifests":[` + strings.Join(descriptors, ",") + `]}`
}

// saved is an archive as docker save makes it.
func saved(manifest string, list ...hostileimage.RawEntry) func(*testing.T, string) io.Reader {
	return func(t *testing.T, outside string) io.Reader {
		t.Helper()
		img := innocent(t)
		archive := new(hostileimage.RawTar).Add(blobEntry("config.json", img.Config.Data), blobEntry("layer.tar", img.Layers[0].Data))
		for _, e := range list {
			e.Link = strings.ReplaceAll(e.Link, "OUTSIDE", outside)
			archive.Add(e)
		}
		if manifest != "" {
			archive.Add(blobEntry("manifest.json", []byte(strings.ReplaceAll(manifest, "OUTSIDE", outside))))
		}
		return bytes.NewReader(archive.End())
	}
}

func blobEntry(name string, data []byte) hostileimage.RawEntry {
	return hostileimage.RawEntry{Name: name, Type: tar.TypeReg, Mode: 0o644, Body: data}
}

const plainSave = `[{"Config":"config.json","RepoTags":["app:1"],"Layers":["layer.tar"]}]`

// savedImages are archives in Docker's form.
func savedImages() []hostileImage {
	link := func(kind byte, target string) hostileimage.RawEntry {
		return hostileimage.RawEntry{Name: "evil", Type: kind, Link: target}
	}
	layers := func(list string) string { return `[{"Config":"config.json","Layers":[` + list + `]}]` }
	return []hostileImage{
		{name: "a configuration outside", lesson: pathLesson, refused: `lacks "../../../etc/passwd", which manifest.json names`, archive: saved(`[{"Config":"../../../etc/passwd","Layers":["layer.tar"]}]`)},
		{name: "a layer outside", lesson: pathLesson, refused: "/outside/secret\", which manifest.json names", archive: saved(layers(`"OUTSIDE/secret"`))},
		{name: "a layer that is a link to the host", lesson: pathLesson, refused: "which manifest.json names", archive: saved(layers(`"evil"`), link(tar.TypeSymlink, "OUTSIDE/secret"))},
		{name: "a layer that is a link to itself", lesson: "lookups that take long", refused: `lacks "evil"`, archive: saved(layers(`"evil"`), link(tar.TypeSymlink, "evil"))},
		{name: "a link with `..`", lesson: pathLesson, refused: `entry "../../etc/passwd" leads out of the archive`, archive: saved(plainSave, link(tar.TypeSymlink, "../../etc/passwd"))},
		{name: "a hard link to the host", lesson: pathLesson, refused: `entry "evil" is neither`, archive: saved(plainSave, link(tar.TypeLink, "OUTSIDE/secret"))},
		{name: "a device", lesson: pathLesson, refused: `entry "evil" is neither`, archive: saved(plainSave, hostileimage.RawEntry{Name: "evil", Type: tar.TypeChar, Major: 1, Minor: 5})},
		{name: "a name with `..`", lesson: pathLesson, refused: `entry "../../evil" leads out of the archive`, archive: saved(plainSave, blobEntry("../../evil", nil))},
		{name: "an absolute name", lesson: pathLesson, refused: `entry "/etc/evil" leads out of the archive`, archive: saved(plainSave, blobEntry("/etc/evil", nil))},
		{name: "a `manifest.json` that is a link", lesson: pathLesson, refused: "neither manifest.json", archive: saved("", hostileimage.RawEntry{Name: "manifest.json", Type: tar.TypeSymlink, Link: "OUTSIDE/secret"})},
		{name: "two `manifest.json`", lesson: ambiguousLesson, refused: `entry "manifest.json" is there twice`, archive: saved(plainSave, blobEntry("manifest.json", []byte(plainSave)))},
		{name: "two lists of layers", lesson: ambiguousLesson, refused: `entry "manifest.json" has the keys "Layers" and "Layers"`, archive: saved(`[{"Config":"config.json","Layers":["layer.tar"],"Layers":["other"]}]`)},
		{name: "two lists of layers, but for the case", lesson: ambiguousLesson, refused: `has the keys "Layers" and "layers"`, archive: saved(`[{"Config":"config.json","Layers":["layer.tar"],"layers":["other"]}]`)},
		{name: "100,000 layers", lesson: memoryLesson, refused: "has 100001 layers, at most 500", archive: saved(layers(`"layer.tar"` + strings.Repeat(`,"layer.tar"`, 100_000)))},
		{name: "a `manifest.json` of 1 GiB", lesson: memoryLesson, refused: `entry "manifest.json" has 1073741824 bytes, at most 8388608`, archive: saved("", hostileimage.RawEntry{Name: "manifest.json", Type: tar.TypeReg, Size: 1 << 30})},
		{name: "a blob of 8 EiB", lesson: bombLesson, refused: `entry "evil" claims 9223372036854775807 bytes`, archive: saved(plainSave, hostileimage.RawEntry{Name: "evil", Type: tar.TypeReg, Size: 1<<63 - 1})},
		{name: "a blob that is larger than the disk", lesson: bombLesson, code: codes.ResourceExhausted, refused: `entry "evil" needs more than the`, archive: saved(plainSave, hostileimage.RawEntry{Name: "evil", Type: tar.TypeReg, Size: 1 << 40})},
		{name: "a PAX header of 1 GiB", lesson: bombLesson, refused: "header field too long", archive: saved("", hostileimage.RawEntry{Name: "evil", Type: tar.TypeXHeader, Size: 1 << 30, Body: bytes.Repeat([]byte("1"), 2<<20)})},
		{name: "a name of 900 KiB", lesson: memoryLesson, refused: "of 921600 bytes, at most 4096", archive: saved(plainSave, hostileimage.RawEntry{Name: "evil", Type: tar.TypeReg, LongName: strings.Repeat("n", 900<<10)})},
		{name: "100,000 empty directories", lesson: bombLesson, refused: "more than 100000 entries", archive: func(t *testing.T, _ string) io.Reader {
			archive := new(hostileimage.RawTar)
			archive.Add(hostileimage.RawEntry{Name: "d", Type: tar.TypeDir})
			return zstdOf(t, bytes.NewReader(bytes.Repeat(archive.Bytes(), 100_001)))
		}},
		{name: "gzip in gzip", lesson: bombLesson, refused: "no tar archive", archive: func(t *testing.T, _ string) io.Reader {
			return gzipOf(t, gzipOf(t, bytes.NewReader(make([]byte, 8<<20))))
		}},
		{name: "a zstd window of 2 GiB", lesson: bombLesson, refused: "window size exceeded", archive: func(*testing.T, string) io.Reader {
			return bytes.NewReader([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 0x03, 0x10, 0, 0})
		}},
		{name: "a zstd window of 128 MiB", lesson: bombLesson, refused: "neither manifest.json", memory: 320, long: true, archive: func(t *testing.T, _ string) io.Reader {
			archive := new(hostileimage.RawTar).Add(hostileimage.RawEntry{Name: "repositories", Type: tar.TypeReg, Body: make([]byte, 160<<20)})
			return zstdOf(t, bytes.NewReader(archive.End()), zstd.WithWindowSize(128<<20), zstd.WithEncoderLevel(zstd.SpeedFastest))
		}},
		{name: "a name that is none", refused: `image name "../evil" in the archive`, archive: saved(`[{"Config":"config.json","RepoTags":["../evil"],"Layers":["layer.tar"]}]`)},
	}
}

func zstdOf(t *testing.T, plain io.Reader, opts ...zstd.EOption) io.Reader {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, opts...)
	if err == nil {
		_, err = io.Copy(z, plain)
	}
	if err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return &out
}

func gzipOf(t *testing.T, plain io.Reader) io.Reader {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := io.Copy(z, plain); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return &out
}

// laidOut is an OCI layout. change gets the image, and returns the index and further entries.
func laidOut(change func(t *testing.T, img *imagetest.Image) (index string, list []hostileimage.RawEntry)) func(*testing.T, string) io.Reader {
	return func(t *testing.T, outside string) io.Reader {
		t.Helper()
		img := innocent(t)
		index, list := change(t, img)
		archive := new(hostileimage.RawTar).Add(blobEntry("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)), blobEntry("index.json", []byte(index)))
		for _, e := range append(list, entriesOf(img.Config, img.Layers[0])...) {
			e.Link = strings.ReplaceAll(e.Link, "OUTSIDE", outside)
			archive.Add(e)
		}
		return bytes.NewReader(archive.End())
	}
}

func entriesOf(blobs ...imagetest.Blob) (list []hostileimage.RawEntry) {
	for _, blob := range blobs {
		list = append(list, blobEntry("blobs/sha256/"+blob.Digest.Encoded(), blob.Data))
	}
	return list
}

// manifested is a layout whose manifest was changed.
func manifested(change func(img *imagetest.Image) imagetest.Blob) func(*testing.T, string) io.Reader {
	return laidOut(func(_ *testing.T, img *imagetest.Image) (string, []hostileimage.RawEntry) {
		manifest := change(img)
		return indexOf(described(manifest, "")), entriesOf(manifest)
	})
}

// layoutsOfImages are OCI layouts.
func layoutsOfImages() []hostileImage {
	replaced := func(was, is string) func(img *imagetest.Image) imagetest.Blob {
		return func(img *imagetest.Image) imagetest.Blob {
			return imagetest.NewBlob(img.Manifest.MediaType, bytes.ReplaceAll(img.Manifest.Data, []byte(was), []byte(is)))
		}
	}
	return append([]hostileImage{
		{name: "a blob that is a link to the host", lesson: pathLesson, refused: "is missing", archive: laidOut(func(_ *testing.T, img *imagetest.Image) (string, []hostileimage.RawEntry) {
			return indexOf(described(img.Manifest, "")), []hostileimage.RawEntry{{Name: "blobs/sha256/" + img.Manifest.Digest.Encoded(), Type: tar.TypeSymlink, Link: "OUTSIDE/secret"}}
		})},
		{name: "a digest with `..`", lesson: digestLesson, refused: `digest "sha256:../../../etc/passwd"`, archive: laidOut(func(*testing.T, *imagetest.Image) (string, []hostileimage.RawEntry) {
			return indexOf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:../../../etc/passwd","size":9}`), nil
		})},
		{name: "a digest of an unknown kind", lesson: digestLesson, refused: `digest "md5:`, archive: laidOut(func(*testing.T, *imagetest.Image) (string, []hostileimage.RawEntry) {
			return indexOf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"md5:0123456789abcdef0123456789abcdef","size":9}`), nil
		})},
		{name: "a blob with another digest than its name", lesson: digestLesson, refused: "has digest sha256:", archive: laidOut(func(_ *testing.T, img *imagetest.Image) (string, []hostileimage.RawEntry) {
			return indexOf(described(img.Manifest, "")), []hostileimage.RawEntry{blobEntry("blobs/sha256/"+img.Manifest.Digest.Encoded(), img.Config.Data)}
		})},
		{name: "a manifest with the fields of an index", lesson: ambiguousLesson, refused: "has the fields of an index and those of a manifest", archive: manifested(func(img *imagetest.Image) imagetest.Blob {
			return with(img.Manifest, `"manifests":[{}]`)
		})},
		{name: "a manifest that says that it is an index", lesson: ambiguousLesson, refused: "and other fields than that has", archive: manifested(replaced(imagespec.MediaTypeImageManifest, imagespec.MediaTypeImageIndex))},
		{name: "a manifest with layers twice", lesson: ambiguousLesson, refused: `has the keys "layers" and "layers"`, archive: manifested(func(img *imagetest.Image) imagetest.Blob { return with(img.Manifest, `"layers":[]`) })},
		{name: "a manifest with two configurations, but for the case", lesson: ambiguousLesson, refused: `has the keys "config" and "CONFIG"`, archive: manifested(func(img *imagetest.Image) imagetest.Blob { return with(img.Manifest, `"CONFIG":{}`) })},
		{name: "an index with manifests twice", lesson: ambiguousLesson, refused: `entry "index.json" has the keys "manifests" and "manifests"`, archive: laidOut(func(*testing.T, *imagetest.Image) (string, []hostileimage.RawEntry) {
			return `{"schemaVersion":2,"manifests":[],"manifests":[]}`, nil
		})},
		{name: "a layer with an unknown type", refused: "layer 0 is application/x-evil", code: codes.Unimplemented, archive: manifested(replaced(imagespec.MediaTypeImageLayer, "application/x-evil"))},
		{name: "annotations of 7 MiB", lesson: memoryLesson, inside: "without its annotations", memory: 160, archive: manifested(func(img *imagetest.Image) imagetest.Blob {
			return with(img.Manifest, `"annotations":{"a":"`+strings.Repeat("x", 7<<20)+`"}`)
		})},
		{name: "100,000 annotations", lesson: memoryLesson, inside: "without its annotations", memory: 160, archive: manifested(func(img *imagetest.Image) imagetest.Blob {
			var b strings.Builder
			for i := range 100_000 {
				fmt.Fprintf(&b, `"%d":"",`, i)
			}
			return with(img.Manifest, `"annotations":{`+strings.TrimSuffix(b.String(), ",")+"}")
		})},
		{name: "a manifest with 100,000 layers", lesson: memoryLesson, refused: "its manifest has 100000 layers, its config 1", memory: 160, archive: manifested(func(img *imagetest.Image) imagetest.Blob {
			return imagetest.NewBlob(img.Manifest.MediaType, []byte(`{"schemaVersion":2,"config":`+described(img.Config, "")+`,"layers":[{}`+strings.Repeat(",{}", 99_999)+`]}`))
		})},
	}, sizesOfLayouts()...)
}

func sizesOfLayouts() []hostileImage {
	return []hostileImage{
		{name: "a manifest whose descriptor says 1 GiB", lesson: memoryLesson, refused: "claims 1073741824 bytes, at most 8388608", archive: laidOut(func(_ *testing.T, img *imagetest.Image) (string, []hostileimage.RawEntry) {
			img.Manifest.Size = 1 << 30
			return indexOf(described(img.Manifest, "")), entriesOf(img.Manifest)
		})},
		{name: "a manifest whose descriptor says 1 byte", refused: "bytes", archive: laidOut(func(_ *testing.T, img *imagetest.Image) (string, []hostileimage.RawEntry) {
			img.Manifest.Size = 1
			return indexOf(described(img.Manifest, "")), entriesOf(img.Manifest)
		})},
		{name: "a configuration of 9 MiB", lesson: memoryLesson, refused: "at most 8388608 are read", archive: manifested(func(img *imagetest.Image) imagetest.Blob {
			img.Config = with(img.Config, `"x":"`+strings.Repeat("x", 9<<20)+`"`)
			again, _ := img.WithLayers(img.Layers...)
			return again.Manifest
		})},
		{name: "six indexes in each other", lesson: "lookups that take long", refused: "more than 4 indexes in indexes", archive: laidOut(func(_ *testing.T, img *imagetest.Image) (string, []hostileimage.RawEntry) {
			list, at := entriesOf(img.Manifest), img.Manifest
			for range 6 {
				at = imagetest.NewBlob(imagespec.MediaTypeImageIndex, []byte(indexOf(described(at, ""))))
				list = append(list, entriesOf(at)...)
			}
			return indexOf(described(at, "")), list
		})},
		{name: "other diff IDs than the layers have", refused: "its content has digest sha256:", archive: manifested(func(img *imagetest.Image) imagetest.Blob {
			img.Config = imagetest.NewBlob(img.Config.MediaType, bytes.ReplaceAll(img.Config.Data, []byte(img.DiffIDs[0]), []byte(digest.FromString("other"))))
			again, _ := img.WithLayers(img.Layers...)
			return again.Manifest
		})},
	}
}

// imagesOfRegistries are images that are pulled.
func imagesOfRegistries() []hostileImage {
	// manifest is a registry whose manifest was changed.
	manifest := func(change func(img *imagetest.Image) imagetest.Blob) func(*testing.T, *imagetest.Registry, string) {
		return func(t *testing.T, r *imagetest.Registry, _ string) {
			t.Helper()
			img := innocent(t)
			r.Push("app", "1", img)
			blob := change(img)
			r.Push("app", "", img)
			r.PushManifest("app", "1", blob)
		}
	}
	typed := func(mediaType string) func(*testing.T, *imagetest.Registry, string) {
		return manifest(func(img *imagetest.Image) imagetest.Blob { img.Manifest.MediaType = mediaType; return img.Manifest })
	}
	// endless is a registry that sends what has a path without an end. Asked how much that is, it does not say.
	endless := func(path, head string) func(*testing.T, *imagetest.Registry, string) {
		return func(t *testing.T, r *imagetest.Registry, _ string) {
			t.Helper()
			r.Push("app", "1", innocent(t))
			r.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
				if !strings.HasSuffix(req.URL.Path, path) {
					return false
				}
				w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
				_, err := io.WriteString(w, head)
				for block := bytes.Repeat([]byte("x"), 1<<20); err == nil && req.Method != http.MethodHead; {
					_, err = w.Write(block)
				}
				return true
			}
		}
	}
	layers := func(change func(layer *imagetest.Blob)) func(*testing.T, *imagetest.Registry, string) {
		return manifest(func(img *imagetest.Image) imagetest.Blob {
			layer := img.Layers[0]
			change(&layer)
			again, _ := img.WithLayers(layer)
			return again.Manifest
		})
	}
	return []hostileImage{
		{name: "a manifest without an end", lesson: memoryLesson, refused: "in the place of a manifest", pull: endless("/manifests/1", `{"schemaVersion":2,"x":"`)},
		{name: "a configuration without an end", lesson: memoryLesson, refused: "its config: " + imagespec.MediaTypeImageConfig + " sha256:", pull: func(t *testing.T, r *imagetest.Registry, host string) {
			endless("/blobs/"+innocent(t).ID(), "")(t, r, host)
		}},
		{name: "a layer without an end", lesson: memoryLesson, refused: "layer 0: failed to copy", pull: func(t *testing.T, r *imagetest.Registry, host string) {
			endless("/blobs/"+innocent(t).Layers[0].Digest.String(), "")(t, r, host)
		}},
		{name: "an index with the type of a manifest", lesson: ambiguousLesson, refused: "and other fields than that has", pull: manifest(func(img *imagetest.Image) imagetest.Blob {
			return imagetest.NewBlob(imagespec.MediaTypeImageManifest, []byte(indexOf(described(img.Manifest, ""))))
		})},
		{name: "a manifest with the type of an index", lesson: ambiguousLesson, refused: "and other fields than that has", pull: typed(imagespec.MediaTypeImageIndex)},
		{name: "a manifest with the fields of an index", lesson: ambiguousLesson, refused: "has the fields of an index and those of a manifest", pull: manifest(func(img *imagetest.Image) imagetest.Blob {
			return with(img.Manifest, `"manifests":[{}]`)
		})},
		{name: "a manifest with layers twice, but for the case", lesson: ambiguousLesson, refused: `has the keys "layers" and "LAYERS"`, pull: manifest(func(img *imagetest.Image) imagetest.Blob { return with(img.Manifest, `"LAYERS":[]`) })},
		{name: "a configuration with its user twice", lesson: ambiguousLesson, refused: `has the keys "User" and "user"`, pull: manifest(func(img *imagetest.Image) imagetest.Blob {
			img.Config = with(img.Config, `"x":{"User":"1000","user":"0"}`)
			again, _ := img.WithLayers(img.Layers...)
			return again.Manifest
		})},
		{name: "a manifest with another digest than the registry says", lesson: digestLesson, refused: "the blob has the digest", pull: func(t *testing.T, r *imagetest.Registry, _ string) {
			t.Helper()
			img := innocent(t)
			img.Manifest.Digest = digest.FromString("other")
			r.Push("app", "1", img)
		}},
		{name: "a layer whose descriptor says 1 byte", refused: "layer 0: failed to copy: httpReadSeeker: read past expected size", pull: layers(func(l *imagetest.Blob) { l.Size = 1 })},
		{name: "a layer whose descriptor says one byte too many", refused: "layer 0: failed to copy: the answer ends after 2048 of 2049 bytes", code: codes.Unknown, pull: layers(func(l *imagetest.Blob) { l.Size++ })},
		{name: "a layer whose descriptor says 1 EiB", lesson: bombLesson, refused: ", 1152921504606846976 bytes", pull: layers(func(l *imagetest.Blob) { l.Size = 1 << 60 })},
		{name: "a layer whose descriptor says -1", refused: ", -1 bytes", pull: layers(func(l *imagetest.Blob) { l.Size = -1 })},
		{name: "a layer with a digest with `..`", lesson: digestLesson, refused: `layer 0: digest "sha256:../../../../etc/passwd"`, pull: layers(func(l *imagetest.Blob) { l.Digest = "sha256:../../../../etc/passwd" })},
		{name: "a layer that is elsewhere", lesson: "requests to other hosts", inside: "from the registry: berth does not ask the other address", pull: func(t *testing.T, r *imagetest.Registry, host string) {
			layers(func(l *imagetest.Blob) { l.URLs = []string{"http://" + host + "/elsewhere"} })(t, r, host)
		}, check: func(t *testing.T, r *imagetest.Registry) {
			for _, request := range r.Requests() {
				if strings.Contains(request, "elsewhere") {
					t.Error(request)
				}
			}
		}},
	}
}

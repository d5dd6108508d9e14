package imagefile

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// part is a file of an archive. link is the target if the file is a link.
type part struct{ name, text, link string }

func pack(t testing.TB, parts ...part) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, p := range parts {
		header := &tar.Header{Name: p.name, Size: int64(len(p.text)), Mode: 0o644, Typeflag: tar.TypeReg}
		if p.link != "" {
			header = &tar.Header{Name: p.name, Linkname: p.link, Mode: 0o777, Typeflag: tar.TypeSymlink}
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, p.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func squeeze(t testing.TB, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// configOf returns the image configuration for some layers.
func configOf(t testing.TB, layers ...string) string {
	t.Helper()
	c := imagespec.Image{Platform: imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	c.RootFS.Type = "layers"
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digest.FromString(l))
	}
	return jsonOf(t, c)
}

func opened(t testing.TB, archive []byte) *File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(name, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(name, filepath.Dir(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// written returns the files that Write writes, and its counts.
func written(t testing.TB, f *File, has Has) (map[string]string, Sent) {
	t.Helper()
	var out bytes.Buffer
	sent, err := f.Write(&out, has)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(&out); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, sent
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}

// manifestOf returns the only manifest of a layout.
func manifestOf(t *testing.T, files map[string]string) (imagespec.Manifest, []string) {
	t.Helper()
	var index imagespec.Index
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range index.Manifests {
		names = append(names, m.Annotations[annotationName])
	}
	var m imagespec.Manifest
	if err := json.Unmarshal([]byte(files[blobName(index.Manifests[0].Digest)]), &m); err != nil {
		t.Fatal(err)
	}
	return m, names
}

const base, own = "the base layer", "a layer of its own"

// dockerArchive returns an image as docker before 25 saves it. It contains the base layer twice.
func dockerArchive(t testing.TB) []byte {
	config := configOf(t, base, own, base)
	return pack(t, part{name: "1/layer.tar", text: base}, part{name: "2/layer.tar", text: own}, part{name: "3/layer.tar", link: "../1/layer.tar"},
		part{name: "c.json", text: config},
		part{name: "manifest.json", text: `[{"Config":"c.json","RepoTags":["app:1","localhost:5000/app:2"],"Layers":["1/layer.tar","2/layer.tar","3/layer.tar"]}]`})
}

func TestDockerArchive(t *testing.T) {
	id := digest.FromString(configOf(t, base, own, base))
	names := []string{"docker.io/library/app:1", "localhost:5000/app:2"}
	for form, archive := range map[string][]byte{"plain": dockerArchive(t), "gzip": []byte(squeeze(t, dockerArchive(t)))} {
		f := opened(t, archive)
		if len(f.Images) != 1 || f.Images[0].ID != id.String() || !slices.Equal(f.Images[0].Names, names) {
			t.Errorf("%s: %+v", form, f.Images)
		}
		files, sent := written(t, f, Has{})
		m, got := manifestOf(t, files)
		if !slices.Equal(got, names) || m.Config.Digest != id || files[blobName(id)] == "" {
			t.Errorf("%s: names %q, config %s", form, got, m.Config.Digest)
		}
		if files[blobName(digest.FromString(base))] != base || files[blobName(digest.FromString(own))] != own || sent.Layers != 2 || sent.Spared != 0 {
			t.Errorf("%s: %+v, %q", form, sent, files)
		}
		if len(m.Layers) != 3 || m.Layers[0].MediaType != imagespec.MediaTypeImageLayer || m.Layers[2].Digest != digest.FromString(base) {
			t.Errorf("%s: layers %+v", form, m.Layers)
		}

		files, sent = written(t, f, Has{Blobs: map[digest.Digest]bool{digest.FromString(base): true}})
		if _, there := files[blobName(digest.FromString(base))]; there || sent.Layers != 1 || sent.Spared != 1 || sent.SpareBytes != int64(len(base)) {
			t.Errorf("%s: what is there was sent: %+v", form, sent)
		}
		if again, _ := manifestOf(t, files); jsonOf(t, again) != jsonOf(t, m) {
			t.Errorf("%s: the manifest is another", form)
		}
	}
}

// TestOtherCompression: a pulled layer is present in the registry's compression.
func TestOtherCompression(t *testing.T) {
	pulled := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayerZstd, Digest: digest.FromString("zstd"), Size: 4}
	files, sent := written(t, opened(t, dockerArchive(t)), Has{Layers: map[digest.Digest]imagespec.Descriptor{digest.FromString(base): pulled}})
	m, _ := manifestOf(t, files)
	if sent.Layers != 1 || sent.Spared != 1 || m.Layers[0].Digest != pulled.Digest || m.Layers[0].MediaType != pulled.MediaType || m.Layers[2].Digest != pulled.Digest {
		t.Errorf("%+v, %+v", sent, m.Layers)
	}

	squeezed := squeeze(t, []byte(own))
	f := opened(t, pack(t, part{name: "l", text: squeezed}, part{name: "c", text: configOf(t, own)}, part{name: "manifest.json", text: `[{"Config":"c","Layers":["l"]}]`}))
	files, _ = written(t, f, Has{})
	if m, _ := manifestOf(t, files); m.Layers[0].Digest != digest.FromString(squeezed) || m.Layers[0].MediaType != imagespec.MediaTypeImageLayerGzip {
		t.Errorf("a compressed layer of a docker archive: %+v", m.Layers)
	}
}

func layoutArchive(t testing.TB) []byte {
	config, other := configOf(t, base, own), strings.ReplaceAll(configOf(t, own), runtime.GOARCH, "vax")
	descriptor := func(mediaType, text string) imagespec.Descriptor {
		return imagespec.Descriptor{MediaType: mediaType, Digest: digest.FromString(text), Size: int64(len(text))}
	}
	manifest := jsonOf(t, imagespec.Manifest{Config: descriptor(imagespec.MediaTypeImageConfig, config), Layers: []imagespec.Descriptor{
		descriptor(imagespec.MediaTypeImageLayer, base), descriptor(imagespec.MediaTypeImageLayer, own),
	}})
	foreign := jsonOf(t, imagespec.Manifest{Config: descriptor(imagespec.MediaTypeImageConfig, other), Layers: []imagespec.Descriptor{descriptor(imagespec.MediaTypeImageLayer, own)}})
	absent := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromString("absent"), Size: 1}
	inner := jsonOf(t, imagespec.Index{Manifests: []imagespec.Descriptor{descriptor("", manifest), descriptor("", foreign), absent}})
	outer := descriptor(imagespec.MediaTypeImageIndex, inner)
	outer.Annotations = map[string]string{annotationName: "docker.io/library/app:1"}
	again := outer
	again.Annotations = map[string]string{imagespec.AnnotationRefName: "latest"}
	parts := []part{{name: "oci-layout", text: `{"imageLayoutVersion":"1.0.0"}`}, {name: "index.json", text: jsonOf(t, imagespec.Index{Manifests: []imagespec.Descriptor{outer, again}})}}
	for _, text := range []string{config, other, manifest, foreign, inner, base, own} {
		parts = append(parts, part{name: blobName(digest.FromString(text)), text: text})
	}
	return pack(t, parts...)
}

func TestLayout(t *testing.T) {
	f := opened(t, layoutArchive(t))
	if len(f.Images) != 1 || f.Images[0].ID != digest.FromString(configOf(t, base, own)).String() || !slices.Equal(f.Images[0].Names, []string{"docker.io/library/app:1"}) {
		t.Errorf("%+v", f.Images)
	}
	whole, sent := written(t, f, Has{})
	if len(whole) != 9 || sent.Layers != 2 {
		t.Errorf("%d files, %+v", len(whole), sent)
	}
	// Another compression does not help, because the manifest does not change.
	has := Has{Blobs: map[digest.Digest]bool{digest.FromString(own): true}, Layers: map[digest.Digest]imagespec.Descriptor{digest.FromString(base): {}}}
	reduced, sent := written(t, f, has)
	if sent.Spared != 1 || len(reduced) != 8 || reduced[blobName(digest.FromString(base))] != base || reduced["index.json"] != whole["index.json"] {
		t.Errorf("%+v of %d files", sent, len(reduced))
	}
}

func TestBadArchives(t *testing.T) {
	for want, archive := range map[string][]byte{
		"neither manifest.json":      pack(t, part{name: "x", text: "y"}),
		"no tar archive":             []byte(strings.Repeat("nothing of the kind ", 100)),
		"cannot unpack it":           []byte(squeeze(t, dockerArchive(t))[:40]),
		`has no "c"`:                 pack(t, part{name: "manifest.json", text: `[{"Config":"c","Layers":["l"]}]`}),
		`has no "l"`:                 pack(t, part{name: "c", text: configOf(t, own)}, part{name: "manifest.json", text: `[{"Config":"c","Layers":["l"]}]`}),
		"names 2 layers":             pack(t, part{name: "c", text: configOf(t, own)}, part{name: "manifest.json", text: `[{"Config":"c","Layers":["l","l"]}]`}),
		"lists no image":             pack(t, part{name: "manifest.json", text: `[]`}),
		`image is called "UPPER"`:    pack(t, part{name: "l", text: own}, part{name: "c", text: configOf(t, own)}, part{name: "manifest.json", text: `[{"Config":"c","Layers":["l"],"RepoTags":["UPPER"]}]`}),
		`entry "manifest.json": inv`: pack(t, part{name: "manifest.json", text: `{`}),
	} {
		name := filepath.Join(t.TempDir(), "a.tar")
		if err := os.WriteFile(name, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(name, filepath.Dir(name)); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "absent"), ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
}

// FuzzOpen: a refusal blames the archive. An accepted archive can be written without any layer, and
// read back with the same names.
func FuzzOpen(f *testing.F) {
	f.Add(dockerArchive(f))
	f.Add(layoutArchive(f))
	f.Add([]byte(squeeze(f, dockerArchive(f))))
	f.Fuzz(func(t *testing.T, archive []byte) {
		name := filepath.Join(t.TempDir(), "a.tar")
		if err := os.WriteFile(name, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		first, err := Open(name, filepath.Dir(name))
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Fatal(err)
			}
			return
		}
		defer first.Close()
		has := Has{Blobs: map[digest.Digest]bool{}}
		for d := range first.layers {
			has.Blobs[d] = true
		}
		for _, img := range first.docker {
			for _, l := range img.layers {
				has.Blobs[l.desc.Digest] = true
			}
		}
		var out bytes.Buffer
		sent, err := first.Write(&out, has)
		if err != nil || sent.Layers != 0 {
			t.Fatalf("%+v, %v", sent, err)
		}
		if err := os.WriteFile(name, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		second, err := Open(name, filepath.Dir(name))
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		var before, after []string
		for _, img := range first.Images {
			before = append(before, img.Names...)
		}
		for _, img := range second.Images {
			after = append(after, img.Names...)
		}
		for _, name := range before {
			if !slices.Contains(after, name) {
				t.Errorf("%q has lost the name %q", after, name)
			}
		}
	})
}

package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

func newStore(t *testing.T) content.Store {
	t.Helper()
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestReadStoresBlobsAndFindsNames(t *testing.T) {
	specs := []imagetest.Spec{
		{Name: "one:1", Files: []imagetest.File{{Path: "f"}}},
		{Files: []imagetest.File{{Path: "g"}}, Compression: "zstd"},
	}
	var buf bytes.Buffer
	if err := imagetest.Archive(&buf, specs...); err != nil {
		t.Fatal(err)
	}
	store := newStore(t)
	total := int64(buf.Len())
	var read int64
	found, err := Read(context.Background(), store, &buf, Limits{Bytes: 1 << 30}, func(n int64) { read += n })
	if err != nil {
		t.Fatal(err)
	}
	if read != total {
		t.Errorf("told of %d bytes, want %d", read, total)
	}
	if len(found) != 2 || len(found[0].Names) != 1 || found[0].Names[0].String() != "docker.io/library/one:1" || len(found[1].Names) != 0 {
		t.Fatalf("found %v", found)
	}
	for i, image := range found {
		built, err := imagetest.Build(specs[i])
		if err != nil {
			t.Fatal(err)
		}
		data, err := content.ReadBlob(context.Background(), store, image.Target)
		if err != nil || !bytes.Contains(data, []byte(built.ID())) {
			t.Errorf("manifest %d: %s, %v", i, data, err)
		}
		for _, blob := range append([]imagetest.Blob{built.Config}, built.Layers...) {
			if got, err := content.ReadBlob(context.Background(), store, blob.Descriptor); err != nil || !bytes.Equal(got, blob.Data) {
				t.Errorf("image %d: blob %s: %v", i, blob.Digest, err)
			}
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	var buf bytes.Buffer
	if err := imagetest.Archive(&buf, imagetest.Spec{Files: []imagetest.File{{Path: "f", Content: make([]byte, 50_000)}}}); err != nil {
		t.Fatal(err)
	}
	_, err := Read(context.Background(), newStore(t), &buf, Limits{Bytes: 10_000}, func(int64) {})
	if !errors.Is(err, errs.Exhausted) {
		t.Errorf("error %v", err)
	}
}

// TestNamesAreBounded: names are held in memory, and a few bytes of an archive can be many of them.
func TestNamesAreBounded(t *testing.T) {
	long := strings.Repeat("n", maxName)
	manifest := func(w *tar.Writer, text string) error {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dockerManifest, Size: int64(len(text))})
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		return err
	}
	for name, c := range map[string]struct {
		write func(w *tar.Writer) error
		want  string
	}{
		"a long name": {func(w *tar.Writer) error {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: long + "x"})
		}, "at most 4096"},
		"a long link": {func(w *tar.Writer) error {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: long + "x"})
		}, "at most 4096"},
		"the longest name": {func(w *tar.Writer) error {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: long})
		}, "neither manifest.json"},
		"many layers": {func(w *tar.Writer) error {
			return manifest(w, `[{"Config":"c","Layers":["a"`+strings.Repeat(`,"a"`, 500)+`]}]`)
		}, "501 layers"},
		"many tags": {func(w *tar.Writer) error {
			return manifest(w, `[{"Config":"c","RepoTags":["a"`+strings.Repeat(`,"a"`, maxEntries)+`]}]`)
		}, "100001 names"},
		"many elements": {func(w *tar.Writer) error {
			return manifest(w, `[{"Config":"c","Layers":[0`+strings.Repeat(`,0`, 200_000)+`]}]`)
		}, "200002 elements"},
		"many images": {func(w *tar.Writer) error { return manifest(w, `[{}`+strings.Repeat(`,{}`, maxEntries)+`]`) }, "100001 images"},
	} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		if err := errors.Join(c.write(w), w.Close()); err != nil {
			t.Fatal(err)
		}
		store := &memory{blobs: map[digest.Digest][]byte{}, open: map[string]bool{}}
		_, err := Read(t.Context(), store, &buf, Limits{Bytes: 1 << 30}, func(int64) {})
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: %.1000v, want %q", name, err, c.want)
		}
	}
	for _, typeflag := range []byte{tar.TypeReg, tar.TypeSymlink} {
		r := &reader{blobs: map[string]imagespec.Descriptor{}, links: map[string]string{}, named: maxNames - 5}
		err := r.entry(t.Context(), &tar.Header{Typeflag: typeflag, Name: "abcdef", Linkname: "x"}, strings.NewReader(""))
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "together") {
			t.Errorf("an entry of type %c after many others: %v", typeflag, err)
		}
	}
}

func TestCleanName(t *testing.T) {
	for name, want := range map[string]string{"a": "a", "./a/b": "a/b", "a/../b": "b", "blobs//sha256/x": "blobs/sha256/x"} {
		if got, err := cleanName(name); err != nil || got != want {
			t.Errorf("cleanName(%q) = %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"/a", "..", "../a", "a/../../b", "./../x"} {
		if _, err := cleanName(name); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("cleanName(%q): %v", name, err)
		}
	}
}

func TestLayoutNames(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		want        string
	}{
		{map[string]string{imagespec.AnnotationRefName: "latest"}, ""},
		{map[string]string{imagespec.AnnotationRefName: "app:v1"}, "docker.io/library/app:v1"},
		{map[string]string{imagespec.AnnotationRefName: "r.example/app"}, "r.example/app:latest"},
		{map[string]string{imagespec.AnnotationRefName: "v2", "io.containerd.image.name": "r.example/app:v2"}, "r.example/app:v2"},
		{map[string]string{imagespec.AnnotationRefName: "r.example/app@" + digest.FromString("target").String()}, "r.example/app@" + digest.FromString("target").String()},
		{map[string]string{imagespec.AnnotationRefName: "r.example/app@" + digest.FromString("other").String()}, ""},
		{nil, ""},
	} {
		names, err := layoutNames(c.annotations, digest.FromString("target"))
		got := ""
		if len(names) > 0 {
			got = names[0].String()
		}
		if err != nil || got != c.want {
			t.Errorf("%v: %q, %v, want %q", c.annotations, got, err, c.want)
		}
	}
}

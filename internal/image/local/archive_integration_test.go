//go:build integration

package local

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

func TestImportReadsEveryForm(t *testing.T) {
	ctx := context.Background()
	specs := []imagetest.Spec{
		{Name: "one:1", Files: []imagetest.File{{Path: "f", Content: []byte("1")}}},
		{Name: "registry.example/two:2", Files: []imagetest.File{{Path: "f", Content: []byte("2")}}, Compression: "gzip"},
		{Name: "localhost:5000/three:3", Files: []imagetest.File{{Path: "f", Content: []byte("3")}}, Compression: "zstd"},
	}
	for format, write := range map[string]func(io.Writer, ...imagetest.Spec) error{"docker": imagetest.Archive, "oci": imagetest.OCIArchive} {
		for _, compression := range []string{"plain", "gzip", "zstd"} {
			t.Run(format+" "+compression, func(t *testing.T) {
				var plain bytes.Buffer
				if err := write(&plain, specs...); err != nil {
					t.Fatal(err)
				}
				s := open(t, testConfig(t))
				// Only a Reader: the stream can be read once.
				list, err := s.Import(ctx, struct{ io.Reader }{squeeze(t, plain.Bytes(), compression)}, "", false, nil)
				if err != nil {
					t.Fatal(err)
				}
				want := []string{"docker.io/library/one:1", "registry.example/two:2", "localhost:5000/three:3"}
				for i, img := range list {
					if len(img.Tags) != 1 || img.Tags[0] != want[i] || len(img.Digests) != 1 || img.Pinned {
						t.Errorf("image %d: %+v", i, img)
					}
					m, err := s.Prepare(ctx, image.RootfsSpec{Key: fmt.Sprint("c", i), ImageID: img.ID})
					if err != nil {
						t.Fatal(err)
					}
					if data, err := os.ReadFile(filepath.Join(m.Path, "f")); err != nil || string(data) != fmt.Sprint(i+1) {
						t.Errorf("image %d has %q, %v", i, data, err)
					}
				}
			})
		}
	}
}

// TestTagsOfOneRepository: an image with two tags in a repository has its digest there once.
func TestTagsOfOneRepository(t *testing.T) {
	files := []imagetest.File{{Path: "f", Content: []byte("1")}}
	for format, write := range map[string]func(io.Writer, ...imagetest.Spec) error{"docker": imagetest.Archive, "oci": imagetest.OCIArchive} {
		var archive bytes.Buffer
		if err := write(&archive, imagetest.Spec{Name: "app:1", Files: files}, imagetest.Spec{Name: "app:2", Files: files}); err != nil {
			t.Fatal(err)
		}
		s := open(t, testConfig(t))
		if _, err := s.Import(t.Context(), &archive, "", false, nil); err != nil {
			t.Fatal(err)
		}
		img, err := s.Get(t.Context(), "app:1")
		if err != nil || len(img.Tags) != 2 || len(img.Digests) != 1 {
			t.Errorf("%s: %q, %q, %v", format, img.Tags, img.Digests, err)
		}
	}
}

func squeeze(t *testing.T, plain []byte, compression string) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	switch compression {
	case "plain":
		return bytes.NewReader(plain)
	case "gzip":
		w = gzip.NewWriter(&buf)
	case "zstd":
		encoder, err := zstd.NewWriter(&buf)
		if err != nil {
			t.Fatal(err)
		}
		w = encoder
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// rewrite copies a tar archive; edit may change an entry, or drop it with nil.
func rewrite(t *testing.T, archive []byte, edit func(h *tar.Header, data []byte) (*tar.Header, []byte)) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h, data = edit(h, data); h == nil {
			continue
		}
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestImportRefusesBadArchivesAndLeavesNothing(t *testing.T) {
	big := make([]byte, 300_000)
	for i := range big {
		big[i] = byte(i * i >> 3)
	}
	spec := imagetest.Spec{Name: "x:1", Layers: []imagetest.Layer{{{Path: "big", Content: big}}, {{Path: "b"}}}}
	docker := archiveOf(t, spec).Bytes()
	var buf bytes.Buffer
	if err := imagetest.OCIArchive(&buf, spec); err != nil {
		t.Fatal(err)
	}
	oci := buf.Bytes()
	hostile := spec
	hostile.Files = []imagetest.File{{Path: "etc", Device: 'c'}}
	foreign := spec
	foreign.Architecture = "s390x"
	type c struct {
		data []byte
		kind error
		text string
	}
	suffix := func(s string) func(string) bool { return func(name string) bool { return strings.HasSuffix(name, s) } }
	flip := func(which func(string) bool) func(h *tar.Header, data []byte) (*tar.Header, []byte) {
		return func(h *tar.Header, data []byte) (*tar.Header, []byte) {
			if which(h.Name) {
				data = append([]byte{}, data...)
				data[len(data)/2] ^= 1
			}
			return h, data
		}
	}
	drop := func(which func(string) bool) func(h *tar.Header, data []byte) (*tar.Header, []byte) {
		return func(h *tar.Header, data []byte) (*tar.Header, []byte) {
			if which(h.Name) {
				return nil, nil
			}
			return h, data
		}
	}
	rename := func(to string) func(h *tar.Header, data []byte) (*tar.Header, []byte) {
		return func(h *tar.Header, data []byte) (*tar.Header, []byte) {
			if strings.HasSuffix(h.Name, ".tar") {
				h.Name = to
			}
			return h, data
		}
	}
	gz, err := io.ReadAll(squeeze(t, docker, "gzip"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]c{
		"empty":                {nil, errs.Invalid, "manifest.json"},
		"no archive":           {[]byte(strings.Repeat("garbage ", 1000)), errs.Invalid, "tar"},
		"truncated":            {docker[:200_000], errs.Invalid, "truncated"},
		"truncated gzip":       {gz[:len(gz)/2], errs.Invalid, "truncated"},
		"truncated oci":        {oci[:100_000], errs.Invalid, "truncated"},
		"corrupt gzip":         {corrupt(gz), errs.Invalid, "corrupt"},
		"layer changed":        {rewrite(t, docker, flip(suffix(".tar"))), errs.Invalid, "cannot unpack layer"},
		"config changed":       {rewrite(t, docker, flip(suffix(".json"))), errs.Invalid, "digest"},
		"oci blob changed":     {rewrite(t, oci, flip(func(n string) bool { return strings.HasPrefix(n, "blobs/") })), errs.Invalid, "digest"},
		"layer missing":        {rewrite(t, docker, drop(suffix(".tar"))), errs.Invalid, "lacks"},
		"oci blobs missing":    {rewrite(t, oci, drop(func(n string) bool { return strings.HasPrefix(n, "blobs/") })), errs.Invalid, "missing"},
		"no manifest":          {rewrite(t, docker, drop(suffix("manifest.json"))), errs.Invalid, "manifest.json"},
		"traversal":            {rewrite(t, docker, rename("../../../etc/evil")), errs.Invalid, `"../../../etc/evil"`},
		"absolute":             {rewrite(t, docker, rename("/etc/evil")), errs.Invalid, `"/etc/evil"`},
		"device in the layer":  {archiveOf(t, hostile).Bytes(), errs.Invalid, `"etc"`},
		"other architecture":   {archiveOf(t, foreign).Bytes(), errs.Unsupported, "is linux/s390x, this node is linux/"},
		"name is no reference": {archiveOf(t, imagetest.Spec{Name: "UPPER case", Files: []imagetest.File{{Path: "x"}}}).Bytes(), errs.Invalid, "UPPER case"},
		"manifest of nonsense": {rewrite(t, docker, func(h *tar.Header, data []byte) (*tar.Header, []byte) {
			if h.Name == "manifest.json" {
				data, _ = json.Marshal([]map[string]any{{"Config": "../../etc/passwd", "Layers": []string{"/etc/shadow"}}})
			}
			return h, data
		}), errs.Invalid, "etc/passwd"},
		"second image bad": {archiveOf(t, imagetest.Spec{Name: "good:1", Files: []imagetest.File{{Path: "ok"}}}, hostile).Bytes(), errs.Invalid, "etc"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, testConfig(t))
			_, err := s.Import(context.Background(), bytes.NewReader(c.data), "", false, nil)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %s", err, c.kind, c.text)
			}
			if list, err := s.List(context.Background()); err != nil || len(list) > 0 {
				t.Errorf("images %+v, %v", list, err)
			}
			s.Close()
			assertEmpty(t, s)
		})
	}
}

// TestImportHealsDocuments: an import writes again what is damaged on disk of the manifests and configs of its images.
func TestImportHealsDocuments(t *testing.T) {
	for format, write := range map[string]func(io.Writer, ...imagetest.Spec) error{"docker": imagetest.Archive, "oci": imagetest.OCIArchive} {
		t.Run(format, func(t *testing.T) {
			var archive bytes.Buffer
			if err := write(&archive, imagetest.Spec{Name: "one:1", Files: []imagetest.File{{Path: "f", Content: []byte("1")}}}); err != nil {
				t.Fatal(err)
			}
			s := open(t, testConfig(t))
			list, err := s.Import(t.Context(), bytes.NewReader(archive.Bytes()), "", false, nil)
			if err != nil {
				t.Fatal(err)
			}
			var documents []digest.Digest
			files, err := filepath.Glob(filepath.Join(filepath.Dir(s.db.BlobPath(digest.FromString(""))), "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil || !bytes.HasPrefix(data, []byte("{")) {
					continue // a layer
				}
				documents = append(documents, digest.NewDigestFromEncoded(digest.SHA256, filepath.Base(file)))
				alter(t, file, func(data []byte) []byte { data[len(data)/2] ^= 1; return data })
			}
			again, err := s.Import(t.Context(), bytes.NewReader(archive.Bytes()), "", false, nil)
			if err != nil || len(again) != 1 || again[0].ID != list[0].ID {
				t.Fatalf("%+v, %v", again, err)
			}
			for _, document := range documents {
				if data, err := os.ReadFile(s.db.BlobPath(document)); err != nil || digest.FromBytes(data) != document {
					t.Errorf("%s is still damaged: %v", document, err)
				}
			}
			if len(documents) < 2 {
				t.Errorf("only %d documents", len(documents))
			}
			if err := s.Export(t.Context(), []string{list[0].ID}, io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
}

func corrupt(gz []byte) []byte {
	bad := append([]byte{}, gz...)
	for i := len(bad) / 2; i < len(bad)/2+64; i++ {
		bad[i] ^= 0xff
	}
	return bad
}

func TestImportOfBrokenStreamIsNoFaultOfTheArchive(t *testing.T) {
	s := open(t, testConfig(t))
	broken := errors.New("connection lost")
	stream := io.MultiReader(bytes.NewReader(archiveOf(t, imagetest.Spec{Name: "x:1", Files: []imagetest.File{{Path: "f", Content: make([]byte, 1<<20)}}}).Bytes()[:5000]), errReader{broken})
	_, err := s.Import(context.Background(), stream, "", false, nil)
	if !errors.Is(err, broken) || errors.Is(err, errs.Invalid) {
		t.Errorf("error %v", err)
	}
	s.Close()
	assertEmpty(t, s)
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestNamesAndIDs(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	load := func(name, fallback, content string) image.Image {
		t.Helper()
		list, err := s.Import(ctx, archiveOf(t, imagetest.Spec{Name: name, Files: []imagetest.File{{Path: "f", Content: []byte(content)}}}), fallback, name == "pin:1", nil)
		if err != nil {
			t.Fatal(err)
		}
		return list[0]
	}
	one := load("busybox", "", "1")
	if one.Tags[0] != "docker.io/library/busybox:latest" {
		t.Errorf("tags %v", one.Tags)
	}
	again := load("other/name:v1", "", "1")
	if again.ID != one.ID || len(again.Tags) != 2 {
		t.Errorf("the same image by another name: %+v", again)
	}
	named := load("", "given:7", "2")
	if len(named.Tags) != 1 || named.Tags[0] != "docker.io/library/given:7" {
		t.Errorf("fallback name: %+v", named)
	}
	nameless := load("", "", "3")
	if len(nameless.Tags)+len(nameless.Digests) != 0 {
		t.Errorf("nameless: %+v", nameless)
	}
	for _, ref := range []string{
		"busybox", "busybox:latest", "docker.io/busybox", "index.docker.io/library/busybox", "other/name:v1",
		one.ID, strings.TrimPrefix(one.ID, "sha256:")[:12], one.ID[:20], one.Digests[0], "busybox:any@" + string(digestOf(one.Digests[0])),
	} {
		if img, err := s.Get(ctx, ref); err != nil || img.ID != one.ID {
			t.Errorf("Get(%q): %+v, %v", ref, img, err)
		}
	}
	if _, err := s.Get(ctx, "sha256:"); !errors.Is(err, errs.Invalid) {
		t.Errorf("Get of no id: %v", err)
	}
	if _, err := s.Get(ctx, "no such"); !errors.Is(err, errs.Invalid) {
		t.Errorf("Get of no reference: %v", err)
	}
	if _, err := s.Get(ctx, "nosuch"); !errors.Is(err, errs.NotFound) {
		t.Errorf("Get of an absent image: %v", err)
	}

	// A tag moves to another image. The previous image stays, by id and by digest.
	moved := load("busybox", "", "4")
	if img, err := s.Get(ctx, "busybox"); err != nil || img.ID != moved.ID {
		t.Errorf("moved tag: %+v, %v", img, err)
	}
	old, err := s.Get(ctx, one.ID)
	if err != nil || len(old.Tags) != 1 || old.Tags[0] != "docker.io/other/name:v1" || len(old.Digests) != 2 {
		t.Errorf("image that lost a tag: %+v, %v", old, err)
	}
	pinned := load("pin:1", "", "5")
	repinned := load("pin:2", "", "5")
	if !pinned.Pinned || !repinned.Pinned {
		t.Error("a pin was lost by a second import without it")
	}

	before, err := s.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	reopened := open(t, s.cfg)
	after, err := reopened.List(ctx)
	if err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("before %+v\nafter  %+v\n%v", before, after, err)
	}
	// Removal by any name removes the image with all its names. A second removal returns nil.
	for _, ref := range []string{"other/name:v1", "other/name:v1", one.ID[:30], moved.ID, "pin:1", "given:7", nameless.ID} {
		if err := reopened.Remove(ctx, ref); err != nil {
			t.Errorf("Remove(%q): %v", ref, err)
		}
	}
	if list, _ := reopened.List(ctx); len(list) != 0 {
		t.Errorf("left after removal: %+v", list)
	}
	reopened.Close()
	assertEmpty(t, reopened)
}

func digestOf(name string) digest.Digest {
	_, dgst, _ := strings.Cut(name, "@")
	return digest.Digest(dgst)
}

func TestAmbiguousPrefix(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	for i := range 17 {
		if _, err := s.Import(ctx, archiveOf(t, imagetest.Spec{Files: []imagetest.File{{Path: fmt.Sprint(i)}}}), "", false, nil); err != nil {
			t.Fatal(err)
		}
	}
	// Of 17 ids two begin with the same digit.
	ambiguous := 0
	for _, c := range "0123456789abcdef" {
		if _, err := s.Get(ctx, "sha256:"+string(c)); errors.Is(err, errs.Invalid) {
			ambiguous++
		}
	}
	if ambiguous == 0 {
		t.Error("no prefix is ambiguous")
	}
}

func TestManyLayers(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	spec := imagetest.Spec{Name: "deep:1"}
	for i := range 150 {
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: "top", Content: []byte(fmt.Sprint(i))}, {Path: fmt.Sprint("f", i)}})
	}
	list, err := s.Import(ctx, archiveOf(t, spec), "", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "deep", ImageID: list[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(m.Path, "top")); err != nil || string(data) != "149" {
		t.Errorf("top is %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(m.Path, "f0")); err != nil {
		t.Errorf("the lowest layer is not there: %v", err)
	}
}

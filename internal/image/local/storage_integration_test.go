//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// storeWith returns a store with images of the given names and different content.
func storeWith(t *testing.T, names ...string) (*Images, map[string]string) {
	t.Helper()
	s, ids := open(t, testConfig(t)), map[string]string{}
	for _, name := range names {
		layers := []imagetest.Layer{{{Path: "etc", Dir: true}, {Path: "etc/name", Content: []byte(name)}, {Path: "var", Dir: true, Mode: 0o711}, {Path: "var/low", Content: []byte("low")}}}
		list, err := s.Import(context.Background(), archiveOf(t, imagetest.Spec{Name: name, Layers: layers}), "", true, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = list[0].ID
	}
	return s, ids
}

// TestStorageIsKept: the next root filesystem has the files that were written to the first one and
// to its volumes. The removal of the first one deletes none of them.
func TestStorageIsKept(t *testing.T) {
	ctx := context.Background()
	s, ids := storeWith(t, "node:1")
	storage := filepath.Join(t.TempDir(), "a", "storage")
	for turn, key := range []string{"first", "second"} {
		mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: ids["node:1"], Storage: storage})
		if err != nil {
			t.Fatal(err)
		}
		volume, err := s.MakeVolume(ctx, image.VolumeSpec{Key: key, Name: "var", From: filepath.Join(mounted.Path, "var")})
		if err != nil {
			t.Fatal(err)
		}
		wantOwner(t, volume, 0, 0o711)
		for _, file := range []string{filepath.Join(mounted.Path, "etc/written"), filepath.Join(volume, "written")} {
			text, err := os.ReadFile(file)
			if turn == 0 {
				err = os.WriteFile(file, []byte("kept"), 0o600)
			} else if string(text) != "kept" {
				t.Errorf("%s has %q", file, text)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if used, err := s.WritableUsage(ctx, key, nil); err != nil || used.Inodes < 4 {
			t.Errorf("usage %+v, %v", used, err)
		}
		if err := s.Release(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err := s.Keys(ctx); err != nil || len(keys) > 0 {
		t.Errorf("left: %q, %v", keys, err)
	}
	if err := os.RemoveAll(storage); err != nil {
		t.Errorf("it cannot be removed: %v", err)
	}
}

func TestStorageRefused(t *testing.T) {
	ctx := context.Background()
	s, ids := storeWith(t, "node:1", "node:2")
	storage := filepath.Join(t.TempDir(), "storage")
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "a", ImageID: ids["node:1"], Storage: storage}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "b", ImageID: ids["node:1"], Storage: storage}); !errors.Is(err, errs.State) {
		t.Errorf("one that is in use: %v", err)
	}
	if err := s.Release(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: ids["node:2"], Storage: storage}); !errors.Is(err, errs.State) {
		t.Errorf("one of another image: %v", err)
	}
	mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "d", ImageID: ids["node:1"]})
	if err != nil {
		t.Fatal(err)
	}
	if !s.copies {
		if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "e", ImageID: ids["node:1"], Storage: filepath.Join(mounted.Path, "srv")}); !errors.Is(err, errs.Unsupported) {
			t.Errorf("one on an overlay: %v", err)
		}
	}
	if err := s.Release(ctx, "d"); err != nil {
		t.Fatal(err)
	}
	if keys, err := s.Keys(ctx); err != nil || len(keys) > 0 {
		t.Errorf("left: %q, %v", keys, err)
	}
}

// TestStorageOutlivesItsImage: written files stay visible over the same image after it was removed
// and imported again, and after the store was reopened.
func TestStorageOutlivesItsImage(t *testing.T) {
	ctx := context.Background()
	config := testConfig(t)
	storage := filepath.Join(t.TempDir(), "storage")
	layers := []imagetest.Layer{{{Path: "etc", Dir: true}, {Path: "etc/name", Content: []byte("n")}}}
	for turn := range 2 {
		s := open(t, config)
		list, err := s.Import(ctx, archiveOf(t, imagetest.Spec{Name: "node:1", Layers: layers}), "", true, nil)
		if err != nil {
			t.Fatal(err)
		}
		mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "n", ImageID: list[0].ID, Storage: storage})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(mounted.Path, "etc", "name")
		if turn == 0 {
			err = os.WriteFile(file, []byte("changed"), 0o600)
		} else if text, readErr := os.ReadFile(file); readErr != nil || string(text) != "changed" {
			t.Errorf("%q, %v", text, readErr)
		}
		if err := errors.Join(err, s.Release(ctx, "n"), s.Remove(ctx, "node:1"), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInterruptedVolumeCopy: an interrupted copy of a volume starts again.
func TestInterruptedVolumeCopy(t *testing.T) {
	ctx := context.Background()
	s, ids := storeWith(t, "node:1")
	storage := filepath.Join(t.TempDir(), "storage")
	mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "n", ImageID: ids["node:1"], Storage: storage})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(storage, "volumes", "var"+".part", "half"), 0o755); err != nil {
		t.Fatal(err)
	}
	volume, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "n", Name: "var", From: filepath.Join(mounted.Path, "var")})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(volume); err != nil || len(entries) != 1 || entries[0].Name() != "low" {
		t.Errorf("%v, %v", entries, err)
	}
	if err := s.Release(ctx, "n"); err != nil {
		t.Fatal(err)
	}
}

// TestExport: an exported image can be imported as the same image, under the requested names.
func TestExport(t *testing.T) {
	ctx := context.Background()
	s, ids := storeWith(t, "localhost/app:1", "localhost/app:2")
	for _, c := range []struct {
		refs []string
		want []string
	}{
		{[]string{"localhost/app:1"}, []string{"localhost/app:1"}},
		{[]string{"localhost/app:1", ids["localhost/app:2"]}, []string{"localhost/app:1", "localhost/app:2"}},
	} {
		var archive bytes.Buffer
		if err := s.Export(ctx, c.refs, &archive); err != nil {
			t.Fatal(err)
		}
		other := open(t, testConfig(t))
		list, err := other.Import(ctx, &archive, "", false, nil)
		if err != nil || len(list) != len(c.want) {
			t.Fatalf("%q: %v, %v", c.refs, list, err)
		}
		for _, name := range c.want {
			if img, err := other.Get(ctx, name); err != nil || img.ID != ids[name] {
				t.Errorf("%s: %v, %v", name, img, err)
			}
		}
	}
	for _, refs := range [][]string{nil, {"nosuch:1"}, {"localhost/app:1", "nosuch:1"}} {
		var archive bytes.Buffer
		if err := s.Export(ctx, refs, &archive); err == nil || archive.Len() > 0 {
			t.Errorf("%q: %d bytes, %v", refs, archive.Len(), err)
		}
	}
}

// TestExportKeepsDigests: names with the digest of an index and of a manifest can be imported, and an import does not change
// the bytes of the next export.
func TestExportKeepsDigests(t *testing.T) {
	ctx := context.Background()
	r := &imagetest.Registry{}
	host := serve(t, r)
	ours, theirs := build(t, layersOf(2, "gzip")), build(t, layersOf(1, ""))
	index := r.PushIndex("multi", "1", map[string]*imagetest.Image{"linux/" + runtime.GOARCH: ours, "linux/s390x": theirs})
	byIndex, byManifest := host+"/multi@"+index.Digest.String(), host+"/multi@"+ours.Manifest.Digest.String()
	s := open(t, testConfig(t))
	for _, ref := range []string{host + "/multi:1", byIndex} {
		if _, err := s.Pull(ctx, ref, image.Auth{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	var first, second bytes.Buffer
	if err := s.Export(ctx, []string{byIndex, host + "/multi:1", byManifest}, &first); err != nil {
		t.Fatal(err)
	}
	other := open(t, testConfig(t))
	if _, err := other.Import(ctx, bytes.NewReader(first.Bytes()), "", true, nil); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{byIndex, host + "/multi:1", byManifest, host + "/multi:1@" + index.Digest.String()} {
		if img, err := other.Get(ctx, ref); err != nil || img.ID != ours.ID() {
			t.Errorf("%s: %v, %v", ref, img, err)
		}
	}
	if err := other.Export(ctx, []string{byManifest, byIndex, host + "/multi:1"}, &second); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Errorf("%d bytes, then %d: %v", first.Len(), second.Len(), err)
	}
}

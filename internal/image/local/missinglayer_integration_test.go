//go:build integration

package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
)

// TestMissingLayerIsUnpackedAgain: a layer whose directory is gone costs no container, without a check and without a restart. The
// root directory is what the image says.
func TestMissingLayerIsUnpackedAgain(t *testing.T) {
	for name, n := range map[string]int{"top": 0, "base": 1} {
		t.Run(name, func(t *testing.T) {
			a := audit(t)
			if err := os.RemoveAll(filepath.Dir(filepath.Join(a.db.LayersDir(), lowerOf(t, a.Images, a.firstID)[n]))); err != nil {
				t.Fatal(err)
			}
			m, err := a.Prepare(t.Context(), image.RootfsSpec{Key: "c2", ImageID: a.firstID})
			if err != nil {
				t.Fatal(err)
			}
			if !sees(t, a.Images, "c2") {
				t.Error("the container sees another file")
			}
			if fi, err := os.Stat(m.Path); err != nil || fi.Mode().Perm() != 0o751 {
				t.Errorf("the root directory: %v, %v", fi, err)
			}
			if data, err := os.ReadFile(filepath.Join(m.Path, "dir/first")); err != nil || string(data) != strings.Repeat("first", 10_000) {
				t.Errorf("the container sees %d bytes, %v", len(data), err)
			}
			// Another one that has unpacked the layer comes too late: the container uses the files that are there.
			img, err := a.Get(t.Context(), a.firstID)
			if err != nil {
				t.Fatal(err)
			}
			late := filepath.Join(a.db.LayersDir(), "late")
			if err := errors.Join(os.Mkdir(late, 0o700), a.db.RestoreFiles(database.WithNamespace(t.Context()), img.ChainID, late, true), os.Remove(late)); err != nil {
				t.Fatal(err)
			}
			a.trash.Empty(t.Context())
			if damage := a.check(t, false); len(damage) != 0 {
				t.Errorf("left: %+v", damage)
			}
		})
	}
}

// TestMissingLayerThatCannotBeUnpacked: the error names the layer, the image and what is wrong.
func TestMissingLayerThatCannotBeUnpacked(t *testing.T) {
	a := audit(t)
	dir := filepath.Dir(filepath.Join(a.db.LayersDir(), lowerOf(t, a.Images, a.firstID)[0]))
	blob := a.first.Layers[1].Digest
	img, err := a.Get(t.Context(), a.firstID)
	if err != nil {
		t.Fatal(err)
	}
	a.registry.Intercept = down
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.db.BlobPath(blob)); err != nil {
		t.Fatal(err)
	}
	_, err = a.Prepare(t.Context(), image.RootfsSpec{Key: "c2", ImageID: a.firstID})
	for _, want := range []string{img.ChainID, a.host + "/first:1", blob.String(), "pull"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s in %v", want, err)
		}
	}
	if keys, err := a.Keys(t.Context()); err != nil || slices.Contains(keys, "c2") {
		t.Errorf("left: %q, %v", keys, err)
	}
}

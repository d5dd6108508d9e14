//go:build integration

package local

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// archived is a store with an image of an archive in a directory that it imports from. No registry has the image.
type archived struct {
	*Images
	cfg   Config
	jobs  seenJobs
	image image.Image
	path  string
	built *imagetest.Image
}

// importArchived opens a store that imports an archive of an image with two layers.
func importArchived(t *testing.T, write func(io.Writer, ...imagetest.Spec) error, pin bool) *archived {
	t.Helper()
	dir := t.TempDir()
	a := &archived{cfg: testConfig(t), jobs: make(seenJobs, 1000), path: filepath.Join(dir, "app.tar")}
	a.cfg.Jobs, a.cfg.ImportRules = a.jobs, ImportRules{Dirs: []string{dir}, Pin: pin}
	spec := imagetest.Spec{Name: "app:1", Compression: "gzip", Layers: []imagetest.Layer{
		{{Path: "low", Content: []byte(strings.Repeat("low", 1000))}}, {{Path: "top", Content: []byte(strings.Repeat("top", 1000))}},
	}}
	a.built = build(t, spec)
	var data bytes.Buffer
	if err := write(&data, spec); err != nil {
		t.Fatal(err)
	}
	dropArchive(t, dir, "app.tar", data.Bytes(), time.Hour)
	a.Images = open(t, a.cfg)
	a.jobs.until(t, "import archive: ok")
	img, err := a.Get(t.Context(), "app:1")
	if err != nil {
		t.Fatal(err)
	}
	a.image = *img
	return a
}

// restart closes the store, damages it, and opens it again.
func (a *archived) restart(t *testing.T, damage func()) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	damage()
	a.Images = open(t, a.cfg)
}

// repaired checks the store with repairs, and returns what it has found.
func (a *archived) repaired(t *testing.T) []image.Damage {
	t.Helper()
	report, err := a.Check(t.Context(), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	return report.Damage
}

// whole expects the image as it was imported, and no damage.
func (a *archived) whole(t *testing.T) {
	t.Helper()
	got, err := a.Get(t.Context(), "app:1")
	if err != nil || got.ID != a.image.ID || got.Pinned != a.image.Pinned {
		t.Errorf("the image: %+v, %v; it was %+v", got, err, a.image)
	}
	if report, err := a.Check(t.Context(), false, nil); err != nil || len(report.Damage) > 0 {
		t.Errorf("left: %+v, %v", report, err)
	}
	for _, layer := range a.built.Layers {
		if data := must(t, a.db.BlobPath(layer.Digest)); !bytes.Equal(data, layer.Data) {
			t.Errorf("layer %s has %d other bytes", layer.Digest, len(data))
		}
	}
}

func flip(data []byte) []byte { data[len(data)/2] ^= 1; return data }

// TestDamageIsMendedFromArchives: content of an image from image.import_dirs comes from its archive, by a start and by a check.
func TestDamageIsMendedFromArchives(t *testing.T) {
	for form, write := range map[string]func(io.Writer, ...imagetest.Spec) error{"docker": imagetest.Archive, "oci": imagetest.OCIArchive} {
		t.Run(form, func(t *testing.T) {
			a := importArchived(t, write, true)
			a.restart(t, func() {
				if err := os.Remove(a.db.BlobPath(a.built.Layers[0].Digest)); err != nil {
					t.Fatal(err)
				}
				alter(t, a.db.BlobPath(a.built.Layers[1].Digest), func(data []byte) []byte { return data[:len(data)/2] })
			})
			a.jobs.until(t, "fetch blob again: ok")
			a.jobs.until(t, "fetch blob again: ok")
			a.whole(t)

			manifest := digest.Digest(a.image.Digests[0][strings.Index(a.image.Digests[0], "@")+1:])
			damaged := []digest.Digest{a.built.Layers[0].Digest, digest.Digest(a.image.ID), manifest}
			for _, blob := range damaged {
				alter(t, a.db.BlobPath(blob), flip)
			}
			found := a.repaired(t)
			if len(found) != len(damaged) {
				t.Errorf("found %+v", found)
			}
			for _, d := range found {
				if !d.Repaired || d.Repair != "fetched again from archive "+a.path {
					t.Errorf("%+v", d)
				}
			}
			a.whole(t)
		})
	}
}

// TestDamageIsMendedFromARegistryWithoutTheArchive: an archive that is gone or has other content is named, and the registry is
// asked. Content with another digest than the lost one is not taken.
func TestDamageIsMendedFromARegistryWithoutTheArchive(t *testing.T) {
	var away atomic.Bool
	registry := &imagetest.Registry{Intercept: func(w http.ResponseWriter, _ *http.Request) bool {
		if away.Load() {
			w.WriteHeader(http.StatusNotFound)
		}
		return away.Load()
	}}
	host := serve(t, registry)
	a := importArchived(t, imagetest.OCIArchive, true)
	registry.Push("app", "1", a.built)
	if err := a.Tag(t.Context(), a.image.ID, []string{host + "/app:1"}); err != nil {
		t.Fatal(err)
	}
	other := archiveOf(t, imagetest.Spec{Name: "app:1", Files: []imagetest.File{{Path: "f", Content: []byte("other")}}}).Bytes()
	blob := a.db.BlobPath(a.built.Layers[0].Digest)
	for what, change := range map[string]func() error{
		"is gone":          func() error { return os.Remove(a.path) },
		"does not have it": func() error { return os.WriteFile(a.path, other, 0o600) },
		"truncated":        func() error { return os.WriteFile(a.path, other[:len(other)/2], 0o600) },
	} {
		// The list is what the store has imported, also if it has not seen yet that the file has changed.
		if err := change(); err != nil {
			t.Fatal(err)
		}
		alter(t, blob, flip)
		away.Store(true)
		if found := a.repaired(t); len(found) != 1 || found[0].Repaired || !strings.Contains(found[0].Advice, "archive "+a.path+": ") || !strings.Contains(found[0].Advice, what) {
			t.Errorf("%s: found %+v", what, found)
		}
		away.Store(false)
		if found := a.repaired(t); len(found) != 1 || !found[0].Repaired || found[0].Repair != "fetched again from "+host+"/app" {
			t.Errorf("%s: with a registry: %+v", what, found)
		}
	}
}

// TestLostImageComesBackFromItsArchive: also if it is not pinned. No registry is asked for it.
func TestLostImageComesBackFromItsArchive(t *testing.T) {
	a := importArchived(t, imagetest.OCIArchive, false)
	_, hex, _ := strings.Cut(a.image.Digests[0], "@sha256:")
	a.restart(t, func() { alter(t, filepath.Join(a.cfg.Root, "content/blobs/sha256", hex), flip) })
	a.jobs.until(t, "import archive: ok")
	a.jobs.until(t, "pull image again: ok")
	a.whole(t)
	if left := a.lost.Images(); len(left) != 0 {
		t.Errorf("still lost: %+v", left)
	}
	// Once it is removed, it stays so.
	err := a.Remove(t.Context(), a.image.ID)
	a.restart(t, func() {})
	if err := errors.Join(err, a.Await(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Get(t.Context(), "app:1"); err == nil {
		t.Error("a removed image came back")
	}
}

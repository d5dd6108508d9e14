//go:build integration

package local

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// dropArchive puts a file into a directory in one step, with a time in the past.
func dropArchive(t *testing.T, dir, name string, data []byte, ago time.Duration) {
	t.Helper()
	temp, at := filepath.Join(dir, ".new"), time.Now().Add(-ago)
	if err := errors.Join(os.WriteFile(temp, data, 0o600), os.Chtimes(temp, at, at), os.Rename(temp, filepath.Join(dir, name))); err != nil {
		t.Fatal(err)
	}
}

// TestArchivesOfADirectoryAreImported: in the background, pinned, each once. An image that was removed stays removed until
// its file changes; one that the store has lost is imported again. A broken archive, and one that is not complete yet, stop
// no other.
func TestArchivesOfADirectoryAreImported(t *testing.T) {
	ctx, dir, jobs := t.Context(), t.TempDir(), make(seenJobs, 1000)
	cfg := testConfig(t)
	cfg.Jobs, cfg.ImportRules = jobs, ImportRules{Dirs: []string{filepath.Join(dir, "nothing"), dir}, Pin: true}
	spec := func(name, content string) imagetest.Spec {
		return imagetest.Spec{Name: name, Files: []imagetest.File{{Path: "f", Content: []byte(content)}}}
	}
	one, two := archiveOf(t, spec("one:1", "1")).Bytes(), archiveOf(t, spec("registry.example/two:1", "2")).Bytes()
	compressed, err := io.ReadAll(squeeze(t, one, "gzip"))
	if err != nil {
		t.Fatal(err)
	}
	dropArchive(t, dir, "a.tar", []byte("garbage"), time.Hour)
	dropArchive(t, dir, "b.tar.gz", compressed, time.Hour)
	dropArchive(t, dir, "c.tar", two[:len(two)/2], time.Hour)
	s := open(t, cfg)
	jobs.until(t, "import archive: failed: ")
	jobs.until(t, "import archive: ok")
	jobs.until(t, "import archive: failed: ")
	tags := tagsOf(t, s) // which demands that they are pinned
	if len(tags) != 1 || tags[0] != "docker.io/library/one:1" {
		t.Errorf("%v", tags)
	}
	dropArchive(t, dir, "c.tar", two, time.Minute)
	jobs.until(t, "import archive: ok")
	img, err := s.Get(ctx, "registry.example/two:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Remove(ctx, img.ID), s.Close()); err != nil {
		t.Fatal(err)
	}

	// A file that comes later is the end of what the next start does: nothing else is read.
	dropArchive(t, dir, "d.tar", archiveOf(t, spec("four:1", "4")).Bytes(), time.Minute)
	s = open(t, cfg)
	jobs.until(t, "import archive: ok")
	select {
	case event := <-jobs:
		t.Errorf("after the one new archive: %s", event)
	default:
	}
	if _, err := s.Get(ctx, "registry.example/two:1"); !errors.Is(err, errs.NotFound) {
		t.Errorf("an image that was removed: %v", err)
	}
	if img, err = s.Get(ctx, "one:1"); err != nil {
		t.Fatal(err)
	}
	manifest := img.Digests[0][len(img.Digests[0])-64:]
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(cfg.Root, "content/blobs/sha256", manifest)); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	jobs.until(t, "import archive: ok")
	if _, err := s.Get(ctx, "one:1"); err != nil {
		t.Errorf("an image that was lost: %v", err)
	}

	// The database is lost, too.
	database := s.db.MetadataFile()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, database, func([]byte) []byte { return []byte("no database") })
	if err := os.Remove(filepath.Join(cfg.Root, "content/blobs/sha256", manifest)); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	jobs.until(t, "import archive: ok")
	if _, err := s.Get(ctx, "one:1"); err != nil {
		t.Errorf("an image that was lost in a rebuild: %v", err)
	}
	if _, err := s.Get(ctx, "registry.example/two:1"); !errors.Is(err, errs.NotFound) {
		t.Errorf("an image that was removed, after a rebuild: %v", err)
	}
}

// TestFormerImagesOfAnArchiveAreUnpinned: when the content of an archive changes, images of its former content can be removed by
// the kubelet, but those that its new content or another archive has, or that somebody has pinned otherwise.
func TestFormerImagesOfAnArchiveAreUnpinned(t *testing.T) {
	dir, jobs := t.TempDir(), make(seenJobs, 1000)
	cfg := testConfig(t)
	cfg.Jobs, cfg.ImportRules = jobs, ImportRules{Dirs: []string{dir}, Pin: true}
	spec := func(name, content string) imagetest.Spec {
		return imagetest.Spec{Name: name, Files: []imagetest.File{{Path: "f", Content: []byte(content)}}}
	}
	s := open(t, cfg)
	if _, err := s.Import(t.Context(), archiveOf(t, spec("before:1", "before")), "", true, nil); err != nil {
		t.Fatal(err)
	}
	names := []string{"app:1", "both:1", "other:1", "before:1", "after:1"}
	dropArchive(t, dir, "a.tar", archiveOf(t, spec("app:1", "app"), spec("both:1", "both"), spec("other:1", "other"), spec("before:1", "before"), spec("after:1", "after")).Bytes(), time.Hour)
	jobs.until(t, "import archive: ok")
	dropArchive(t, dir, "b.tar", archiveOf(t, spec("other:1", "other")).Bytes(), time.Hour)
	jobs.until(t, "import archive: ok")
	if _, err := s.Import(t.Context(), archiveOf(t, spec("after:1", "after")), "", true, nil); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, name := range names {
		img, err := s.Get(t.Context(), name)
		if err != nil || !img.Pinned {
			t.Fatalf("%s: %+v, %v", name, img, err)
		}
		ids[name] = img.ID
	}
	dropArchive(t, dir, "a.tar", archiveOf(t, spec("app:1", "newer"), spec("both:1", "both")).Bytes(), time.Minute)
	jobs.until(t, "import archive: ok")
	for range 2 {
		for _, name := range names {
			if img, err := s.Get(t.Context(), ids[name]); err != nil || img.Pinned != (name != "app:1") {
				t.Errorf("the former %s: %+v, %v", name, img, err)
			}
		}
		if img, err := s.Get(t.Context(), "app:1"); err != nil || !img.Pinned || img.ID == ids["app:1"] {
			t.Errorf("the new app:1: %+v, %v", img, err)
		}
		s = reopen(t, s)
	}
}

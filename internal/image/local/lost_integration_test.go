//go:build integration

package local

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// lose returns a store with an image that its start has lost with its database, beside the archive of the image.
func lose(t *testing.T, jobs image.Jobs, pin bool) (s *Images, lostID, archive string) {
	t.Helper()
	cfg := testConfig(t)
	cfg.Jobs = jobs
	s, plain := open(t, cfg), imagetest.Spec{Name: "plain:1", Files: []imagetest.File{{Path: "p", Content: []byte("plain")}}}
	archive = filepath.Join(t.TempDir(), "plain.tar")
	data := archiveOf(t, plain)
	dropArchive(t, filepath.Dir(archive), "plain.tar", data.Bytes(), time.Hour)
	list, err := s.Import(t.Context(), data, "", pin, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), archiveOf(t, imagetest.Spec{Name: "stays:1", Files: []imagetest.File{{Path: "s"}}}), "", true, nil); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(s.cfg.Root, "content/blobs/sha256", strings.TrimPrefix(list[0].ID, "sha256:"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, config, flip)
	if err := os.Truncate(s.db.MetadataFile(), 0); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	s.cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s = open(t, s.cfg)
	if faults := s.Faults(); len(faults) != 1 || !strings.HasSuffix(faults[0], ": docker.io/library/plain:1") {
		t.Errorf("what is said of it: %q", faults)
	}
	for _, line := range log.take() {
		if strings.Contains(line, "missing") && !strings.Contains(line, "metadata.db is missing or empty") {
			t.Errorf("content that is there is called missing: %s", line)
		}
		if strings.Contains(line, "was made again") && !strings.Contains(line, "other content") {
			t.Errorf("it is not said that the config has other content: %s", line)
		}
	}
	return s, list[0].ID, archive
}

// TestLossesEnd: the store is intact once what was lost is back, whatever brings it back, or once somebody removes its names.
// It stays so, also if the image is removed later. What was set aside is still shown.
func TestLossesEnd(t *testing.T) {
	jobs := make(seenJobs, 1000)
	for what, mend := range map[string]func(s *Images, archive string) error{
		"an import": func(s *Images, archive string) error {
			file, err := os.Open(archive)
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = s.Import(t.Context(), file, "", true, nil)
			return err
		},
		"a removal": func(s *Images, _ string) error { return s.Remove(t.Context(), "plain:1") },
		"another image": func(s *Images, _ string) error {
			return s.Tag(t.Context(), "stays:1", []string{"docker.io/library/plain:1"})
		},
		"a directory of archives": func(s *Images, archive string) error {
			s.SetImportRules(ImportRules{Dirs: []string{filepath.Dir(archive)}})
			jobs.until(t, "import archive: ok")
			return nil
		},
	} {
		for _, pin := range []bool{true, false} {
			t.Run(what, func(t *testing.T) {
				s, id, archive := lose(t, jobs, pin)
				if err := mend(s, archive); err != nil {
					t.Fatal(err)
				}
				if faults := s.Faults(); len(faults) != 0 {
					t.Errorf("after it: %q", faults)
				}
				if len(s.SetAside()) != 1 {
					t.Errorf("set aside: %q", s.SetAside())
				}
				if _, err := s.Get(t.Context(), id); err == nil {
					if err := s.Remove(t.Context(), id); err != nil {
						t.Fatal(err)
					}
				}
				if s = reopen(t, s); len(s.Faults()) != 0 {
					t.Errorf("after a restart: %q", s.Faults())
				}
			})
		}
	}
}

// TestImportsBesideLostImages: nothing waits for ever while images are recorded and an image is lost.
func TestImportsBesideLostImages(t *testing.T) {
	s, _, _ := lose(t, make(seenJobs, 1000), true)
	archive := archiveOf(t, imagetest.Spec{Name: "beside:1", Layers: []imagetest.Layer{{{Path: "file"}}}})
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case <-ended:
				return
			default:
				s.changed()
			}
		}
	}()
	for range 20 {
		if _, err := s.Import(t.Context(), bytes.NewReader(archive.Bytes()), "", false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Faults()) != 1 {
		t.Errorf("faults: %q", s.Faults())
	}
}

// TestLostImageIsPinnedAgain: an import brings an image back as it was, pinned or not, if nobody says otherwise.
func TestLostImageIsPinnedAgain(t *testing.T) {
	for _, pin := range []bool{true, false} {
		s, id, path := lose(t, make(seenJobs, 1000), pin)
		if lost := s.LostNames("", "plain:1"); !slices.Equal(lost, []string{"docker.io/library/plain:1"}) {
			t.Errorf("lost: %q", lost)
		}
		s = reopen(t, s)
		if _, err := s.Import(t.Context(), bytes.NewReader(must(t, path)), "", false, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(t.Context(), id); err != nil || got.Pinned != pin {
			t.Errorf("pinned %v before: %+v, %v", pin, got, err)
		}
		if lost := s.LostNames("", "plain:1"); len(lost) != 0 {
			t.Errorf("still lost: %q", lost)
		}
	}
}

// TestCheckReportsLostImages: a check reports what is lost as damage that is left. With repair it brings back what an archive or a
// registry has.
func TestCheckReportsLostImages(t *testing.T) {
	jobs := make(seenJobs, 1000)
	s, id, path := lose(t, jobs, true)
	look := func(repair bool) image.Damage {
		t.Helper()
		report, err := s.Check(t.Context(), repair, nil)
		if err != nil || len(report.Damage) != 1 || report.Damage[0].Object != "image" || !slices.Equal(report.Damage[0].Images, []string{"docker.io/library/plain:1"}) {
			t.Fatalf("%+v, %v", report, err)
		}
		return report.Damage[0]
	}
	if found := look(false); found.Repaired || !strings.Contains(found.Advice, "--repair") || !strings.Contains(found.Advice, "berth image rm docker.io/library/plain:1") {
		t.Errorf("%+v", found)
	}
	if found := look(true); found.Repaired || !strings.Contains(found.Advice, "cannot be pulled") || !strings.Contains(found.Advice, "berth image rm docker.io/library/plain:1") {
		t.Errorf("without an archive: %+v", found)
	}
	s.SetImportRules(ImportRules{Dirs: []string{filepath.Dir(path)}})
	jobs.until(t, "import archive: ok")
	if got, err := s.Get(t.Context(), id); err != nil || !got.Pinned {
		t.Errorf("%+v, %v", got, err)
	}
	if report, err := s.Check(t.Context(), false, nil); err != nil || len(report.Damage) != 0 {
		t.Errorf("after its import: %+v, %v", report, err)
	}
}

// TestRepairPullsLostImages: also those that were pinned, and they are pinned again.
func TestRepairPullsLostImages(t *testing.T) {
	registry := &imagetest.Registry{}
	host := serve(t, registry)
	a := importArchived(t, imagetest.OCIArchive, true)
	registry.Push("app", "1", a.built)
	if err := a.Tag(t.Context(), a.image.ID, []string{host + "/app:1"}); err != nil {
		t.Fatal(err)
	}
	a.restart(t, func() {
		if err := errors.Join(os.Remove(a.path), os.Remove(a.db.BlobPath(digest.Digest(a.image.ID)))); err != nil {
			t.Fatal(err)
		}
	})
	if found := a.repaired(t); len(found) != 1 || found[0].Object != "image" || !found[0].Repaired || found[0].Repair != "pulled again" {
		t.Errorf("%+v", found)
	}
	a.whole(t)
	if faults := a.Faults(); len(faults) != 0 {
		t.Errorf("still lost: %q", faults)
	}
}

// TestLossesOfAPullThatFails: a registry that does not have the image ends the pull. The image stays lost, and the next start does not
// ask again.
func TestLossesOfAPullThatFails(t *testing.T) {
	a := audit(t)
	cfg := a.cfg
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, a.db.BlobPath(a.first.Manifest.Digest), flip)
	a.registry.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		return true
	}
	jobs := make(seenJobs, 1000)
	cfg.Jobs = jobs
	s := open(t, cfg)
	jobs.until(t, "pull image again: failed: ")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	asked := len(a.registry.Requests())
	s = open(t, cfg)
	if faults := s.Faults(); len(faults) != 1 || !strings.Contains(faults[0], "pull or import them again") || !strings.HasSuffix(faults[0], ": "+a.host+"/first:1") {
		t.Errorf("what is said of it: %q", faults)
	}
	if again := len(a.registry.Requests()); again != asked {
		t.Errorf("%d requests to the registry, want none", again-asked)
	}
	a.registry.Intercept = nil
	if _, err := s.Pull(t.Context(), a.host+"/first:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if faults := s.Faults(); len(faults) != 0 {
		t.Errorf("after a pull: %q", faults)
	}
	if entries, err := os.ReadDir(cfg.Root); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "lost.json" }) {
		t.Errorf("the list is left: %v", err)
	}
}

// TestLayersThatAreUnpackedAgainAreNamed: the log says which layer is missing.
func TestLayersThatAreUnpackedAgainAreNamed(t *testing.T) {
	a := audit(t)
	cfg, chain := a.cfg, ""
	layer := filepath.Dir(filepath.Join(a.db.LayersDir(), lowerOf(t, a.Images, a.firstID)[0]))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(layer); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s := open(t, cfg)
	inventory, err := s.store.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range inventory {
		if img.ID == a.firstID {
			chain = img.Tree.TopChain()
		}
	}
	said := log.take()
	if !slices.ContainsFunc(said, func(line string) bool {
		return strings.Contains(line, "unpacking an image again") && strings.Contains(line, "the files of layer "+chain+" are missing")
	}) {
		t.Errorf("no line names layer %s: %q", chain, said)
	}
	for _, line := range said {
		if strings.Contains(line, "error=<nil>") {
			t.Errorf("an error that is none: %s", line)
		}
	}
}

//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/lost"
)

// seenJobs shows the jobs of a store to a test: their stages, and "ok" or the error at the end.
type seenJobs chan string

func (s seenJobs) Run(ctx context.Context, job image.Job, work func(context.Context, image.Stage) error) error {
	err := work(ctx, func(name, _ string, _ time.Time) { s <- job.Kind + ": " + name })
	if err != nil {
		s <- job.Kind + ": failed: " + err.Error()
		return err
	}
	s <- job.Kind + ": ok"
	return nil
}

// until reads events up to one that begins with a text.
func (s seenJobs) until(t *testing.T, want string) {
	t.Helper()
	var all []string
	for {
		select {
		case event := <-s:
			if all = append(all, event); strings.HasPrefix(event, want) {
				return
			}
		case <-t.Context().Done():
			t.Fatalf("no %q in %q", want, all)
		}
	}
}

// cancelsWith cancels each job with an error when it fetches.
type cancelsWith struct{ error }

func (c cancelsWith) Run(ctx context.Context, _ image.Job, work func(context.Context, image.Stage) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return work(ctx, func(name, _ string, _ time.Time) {
		if name == "fetching" {
			cancel(c.error)
		}
	})
}

// TestCancelledPull: its error is the cause of the cancellation, which those who wait can recognize.
func TestCancelledPull(t *testing.T) {
	r := &imagetest.Registry{}
	r.Push("app", "1", build(t, layersOf(2, "gzip")))
	cause := fmt.Errorf("an operator has cancelled the job: %w", errs.Unavailable)
	cfg := testConfig(t)
	cfg.Jobs = cancelsWith{cause}
	ref := serve(t, r) + "/app:1"
	_, err := open(t, cfg).Pull(t.Context(), ref, image.Auth{}, nil)
	if !errors.Is(err, cause) || errs.Message(err) != "cannot pull image "+ref+": an operator has cancelled the job" {
		t.Errorf("%v", err)
	}
}

// down is a registry's answer while it is not there.
func down(w http.ResponseWriter, _ *http.Request) bool {
	w.WriteHeader(http.StatusServiceUnavailable)
	return true
}

// TestDamagedBlobIsFetchedAgainAfterAStart: the job is tried again while the registry is away, ends with the store, and
// the next start continues it. The container runs on.
func TestDamagedBlobIsFetchedAgainAfterAStart(t *testing.T) {
	a := audit(t)
	cfg, layer := a.cfg, a.second.Layers[1]
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, a.db.BlobPath(layer.Digest), func(data []byte) []byte { return data[:len(data)/2] })
	jobs := make(seenJobs, 1000)
	cfg.Jobs = jobs
	var away atomic.Bool
	away.Store(true)
	a.registry.Intercept = func(w http.ResponseWriter, req *http.Request) bool { return away.Load() && down(w, req) }
	s := open(t, cfg)
	jobs.until(t, "fetch blob again: wait to try again")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	jobs.until(t, "fetch blob again: failed: ")
	away.Store(false)
	s = open(t, cfg)
	jobs.until(t, "fetch blob again: ok")
	if data := must(t, s.db.BlobPath(layer.Digest)); !bytes.Equal(data, layer.Data) {
		t.Errorf("the blob has %d bytes, want %d", len(data), len(layer.Data))
	}
	if report, err := s.Check(t.Context(), false, nil); err != nil || len(report.Damage) > 0 {
		t.Errorf("left: %+v, %v", report, err)
	}
	if data := must(t, filepath.Join(s.rootfs.MountsDir(), "c1/dir/second")); len(data) != 60_000 {
		t.Errorf("the container sees %d bytes", len(data))
	}
	if err := s.Export(t.Context(), []string{a.other}, io.Discard); err != nil {
		t.Error(err)
	}
}

// TestLostImageIsPulledAgainAfterAStart: by its digest, though the tag has moved in the registry, and by a later start if
// the registry was away during the first. A start after that does not pull it.
func TestLostImageIsPulledAgainAfterAStart(t *testing.T) {
	a := audit(t)
	cfg := a.cfg
	if err := a.Tag(t.Context(), a.firstID, []string{a.host + "/first:2"}); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.db.BlobPath(a.first.Manifest.Digest)); err != nil {
		t.Fatal(err)
	}
	moved := build(t, layersOf(1, "gzip"))
	a.registry.Push("first", "1", moved)
	jobs := make(seenJobs, 1000)
	cfg.Jobs = jobs
	var away atomic.Bool
	away.Store(true)
	a.registry.Intercept = func(w http.ResponseWriter, req *http.Request) bool { return away.Load() && down(w, req) }
	s := open(t, cfg)
	jobs.until(t, "pull image again: wait to try again")
	if _, err := s.Get(t.Context(), a.host+"/first:1"); !errors.Is(err, errs.NotFound) {
		t.Errorf("a lost image is listed: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	away.Store(false)
	s = open(t, cfg)
	jobs.until(t, "pull image again: ok")
	got, err := s.Get(t.Context(), a.host+"/first:1")
	if err != nil || got.ID != a.firstID || !slices.Equal(got.Tags, []string{a.host + "/first:1", a.host + "/first:2"}) || len(got.Digests) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := s.Remove(t.Context(), a.firstID); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := open(t, cfg).lost.Images(); len(left) != 0 {
		t.Errorf("still to be restored: %+v", left)
	}
}

// TestImageLostInARebuildIsPulledAgain: the database and the manifest of an image are damaged.
func TestImageLostInARebuildIsPulledAgain(t *testing.T) {
	a := audit(t)
	cfg := a.cfg
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, a.db.MetadataFile(), func([]byte) []byte { return []byte("no database") })
	alter(t, a.db.BlobPath(a.first.Manifest.Digest), func(data []byte) []byte { return data[:len(data)/2] })
	jobs := make(seenJobs, 1000)
	cfg.Jobs = jobs
	s := open(t, cfg)
	jobs.until(t, "pull image again: ok")
	if got, err := s.Get(t.Context(), a.host+"/first:1"); err != nil || got.ID != a.firstID {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRestoreLeavesNamesOfOthers: a name that another image has is not moved back.
func TestRestoreLeavesNamesOfOthers(t *testing.T) {
	a := audit(t)
	gone := lostOf(t, a)
	if err := a.Remove(t.Context(), a.firstID); err != nil {
		t.Fatal(err)
	}
	if err := a.Tag(t.Context(), a.other, gone.Names[:1]); err != nil {
		t.Fatal(err)
	}
	if err := a.store.Restore(t.Context(), gone, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Get(t.Context(), gone.Names[0]); err != nil || got.ID != a.other {
		t.Errorf("the name that was taken: %+v, %v", got, err)
	}
	if got, err := a.Get(t.Context(), gone.Names[1]); err != nil || got.ID != a.firstID || len(got.Tags) != 1 {
		t.Errorf("the name that was free: %+v, %v", got, err)
	}
}

// lostOf is the first image as a start would have lost it, with two tags.
func lostOf(t *testing.T, a *audited) lost.Image {
	t.Helper()
	return lost.Image{
		Names:  []string{a.host + "/first:1", a.host + "/first:2"},
		Target: imagespec.Descriptor{MediaType: a.first.Manifest.MediaType, Digest: a.first.Manifest.Digest, Size: a.first.Manifest.Size},
	}
}

// TestExportOfDamagedContentFetchesItAgain: the export fails, and has the right bytes later.
func TestExportOfDamagedContentFetchesItAgain(t *testing.T) {
	a := audit(t)
	jobs := make(seenJobs, 1000)
	cfg := a.cfg
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Jobs = jobs
	s := open(t, cfg)
	alter(t, s.db.BlobPath(a.first.Layers[1].Digest), func(data []byte) []byte { data[20] ^= 1; return data })
	if err := s.Export(t.Context(), []string{a.firstID}, io.Discard); err == nil || !strings.Contains(err.Error(), "damaged on disk") {
		t.Fatalf("the export of damaged content: %v", err)
	}
	jobs.until(t, "fetch blob again: ok")
	if err := s.Export(t.Context(), []string{a.firstID}, io.Discard); err != nil {
		t.Error(err)
	}
}

// TestCheckCanEndAtAnyMoment: whenever its client leaves, the store is valid, and a later check goes on.
func TestCheckCanEndAtAnyMoment(t *testing.T) {
	a := audit(t)
	damage := func() {
		alter(t, a.db.BlobPath(a.first.Layers[1].Digest), func(data []byte) []byte { return bytes.Repeat([]byte{1}, len(data)) })
		alter(t, a.db.BlobPath(a.first.Config.Digest), func(data []byte) []byte { clear(data); return data })
		alter(t, filepath.Join(a.db.LayersDir(), lowerOf(t, a.Images, a.firstID)[0], "dir/first"), func(data []byte) []byte { data[0] ^= 1; return data })
	}
	for n := 1; ; n += 6 {
		damage()
		ctx, cancel := context.WithCancel(t.Context())
		updates := 0
		_, err := a.Check(ctx, true, func(image.CheckUpdate) {
			if updates++; updates == n {
				cancel()
			}
		})
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("after %d updates: %v", n, err)
		}
		if left, _ := filepath.Glob(filepath.Join(a.db.ContentDir(), "mending-*")); len(left) > 0 {
			t.Fatalf("after %d updates: left on disk: %v", n, left)
		}
	}
	if _, err := a.Check(t.Context(), true, nil); err != nil {
		t.Fatal(err)
	}
	if damage := a.check(t, false); len(damage) > 0 {
		t.Errorf("left: %+v", damage)
	}
	s := reopen(t, a.Images)
	if report, err := s.Check(t.Context(), false, nil); err != nil || len(report.Damage) > 0 || report.Blobs != 7 {
		t.Errorf("after a restart: %+v, %v", report, err)
	}
}

// TestCloseEndsACheck: the check ends while a registry does not answer, and the store closes.
func TestCloseEndsACheck(t *testing.T) {
	a := audit(t)
	alter(t, a.db.BlobPath(a.first.Layers[1].Digest), func(data []byte) []byte { clear(data); return data })
	reached := make(chan struct{}, 10)
	a.registry.Intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		reached <- struct{}{}
		<-req.Context().Done()
		return true
	}
	checked := make(chan error, 1)
	go func() {
		_, err := a.Check(context.Background(), true, nil)
		checked <- err
	}()
	<-reached
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := <-checked; err == nil {
		t.Error("the check ended without an error")
	}
	if _, err := a.Check(context.Background(), false, nil); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a check of a closed store: %v", err)
	}
}

// TestModesOfTheStoreItself: chmod -R and chown -R of the store are found and repaired, but for what containers write.
func TestModesOfTheStoreItself(t *testing.T) {
	a := audit(t)
	root, layer := a.cfg.Root, filepath.Dir(filepath.Join(a.db.LayersDir(), lowerOf(t, a.Images, a.firstID)[0]))
	blob := a.db.BlobPath(a.first.Layers[0].Digest)
	upper := filepath.Join(root, "containers/c1/upper")
	wrong := []string{
		root, a.db.ContentDir(), filepath.Dir(blob), blob, a.db.MetadataFile(), a.db.SnapshotsFile(), filepath.Join(root, "trash"), layer,
		filepath.Join(layer, "layer"), filepath.Join(root, "containers/c1"), filepath.Join(root, "containers/c1/image"), filepath.Join(root, "names.json"),
	}
	for i, path := range append(slices.Clone(wrong), upper) {
		err := os.Chmod(path, 0o777)
		if i%3 == 0 {
			err = errors.Join(err, os.Chown(path, 1000, 1000))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ready, err := filepath.Glob(filepath.Join(root, "pool/*/upper"))
	if err != nil || len(ready) == 0 {
		t.Fatalf("%v, %v", ready, err)
	}
	if err := os.Chmod(ready[0], 0o777); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(filepath.Dir(root), "linked")
	if err := os.Link(blob, linked); err != nil {
		t.Fatal(err)
	}
	expect := func(repair bool, left ...string) {
		t.Helper()
		var found []string
		for _, d := range a.check(t, repair) {
			if d.Path == "" || d.Digest != "" || !strings.Contains(d.Problem, "want") || d.Repaired != (repair && !slices.Contains(left, d.Path)) || d.Repaired == (d.Advice != "") || d.Repaired != (d.Repair != "") {
				t.Errorf("damage %+v", d)
			}
			found = append(found, d.Path)
		}
		want := append(slices.Clone(wrong), filepath.Join(root, "pool"))
		slices.Sort(found)
		slices.Sort(want)
		if !slices.Equal(found, want) {
			t.Errorf("found %q, want %q", found, want)
		}
	}
	expect(false)
	expect(true, blob) // a file with another name may be anybody's
	if err := os.Remove(linked); err != nil {
		t.Fatal(err)
	}
	if damage := a.check(t, true); len(damage) != 1 || damage[0].Path != blob || !damage[0].Repaired {
		t.Errorf("without the other name: %+v", damage)
	}
	if damage := a.check(t, false); len(damage) > 0 {
		t.Errorf("left: %+v", damage)
	}
	if fi, err := os.Stat(upper); err != nil || fi.Mode().Perm() != 0o777 {
		t.Errorf("what a container writes to has the mode %v, %v", fi.Mode(), err)
	}
	m, err := a.Prepare(t.Context(), image.RootfsSpec{Key: "c2", ImageID: a.firstID})
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(m.Path); err != nil || fi.Mode().Perm() != 0o751 {
		t.Errorf("a new root filesystem has the mode %v, %v", fi.Mode(), err)
	}
}

// TestCheckReportsTheQuarantine: what a start has set aside is in the report, with its directory.
func TestCheckReportsTheQuarantine(t *testing.T) {
	s, _, _ := running(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.db.MetadataFile(), 0); err != nil {
		t.Fatal(err)
	}
	s = open(t, s.cfg)
	report, err := s.Check(t.Context(), false, nil)
	if err != nil || len(report.Quarantined) != 1 || len(report.Notes) == 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	q := report.Quarantined[0]
	if _, err := os.Stat(filepath.Join(q.Dir, "metadata.db")); err != nil || !strings.HasPrefix(q.Objects[0], "metadata.db and snapshots.db: ") || q.At.IsZero() {
		t.Errorf("%+v, %v", q, err)
	}
}

// TestPullsGoFirst: a pull ends what is fetched in the background, which begins again after it.
func TestPullsGoFirst(t *testing.T) {
	a := audit(t)
	cfg, layer := a.cfg, a.first.Layers[1]
	a.registry.Push("other", "1", build(t, layersOf(1, "gzip")))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.db.BlobPath(layer.Digest)); err != nil {
		t.Fatal(err)
	}
	var hangs atomic.Bool
	hangs.Store(true)
	reached := make(chan struct{}, 10)
	a.registry.Intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, layer.Digest.String()) || !hangs.Load() {
			return false
		}
		reached <- struct{}{}
		<-req.Context().Done()
		return true
	}
	jobs := make(seenJobs, 1000)
	cfg.Jobs = jobs
	s := open(t, cfg)
	<-reached
	hangs.Store(false)
	if _, err := s.Pull(t.Context(), a.host+"/other:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	jobs.until(t, "fetch blob again: fetch")
	jobs.until(t, "fetch blob again: wait for its turn")
	jobs.until(t, "fetch blob again: ok")
	if data := must(t, s.db.BlobPath(layer.Digest)); !bytes.Equal(data, layer.Data) {
		t.Errorf("the blob has %d bytes, want %d", len(data), len(layer.Data))
	}
}

//go:build integration

package local

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// audited is a store with two images that share their lowest layer, pulled from a registry. A
// container uses the second one.
type audited struct {
	*Images
	registry       *imagetest.Registry
	host           string
	first, second  *imagetest.Image
	firstID, other string
}

func audit(t *testing.T) *audited {
	t.Helper()
	return auditOf(t, testConfig(t))
}

func auditOf(t *testing.T, cfg Config) *audited {
	t.Helper()
	a := &audited{registry: &imagetest.Registry{}}
	a.host = serve(t, a.registry)
	spec := func(own string) imagetest.Spec {
		return imagetest.Spec{Compression: "gzip", Layers: []imagetest.Layer{
			{{Path: ".", Dir: true, Mode: 0o751}, {Path: "base", Content: []byte(strings.Repeat("base", 10_000)), Xattrs: map[string]string{"user.x": "y"}}, {Path: "link", Symlink: "base"}},
			{{Path: "dir", Dir: true, Mode: 0o750}, {Path: "dir/" + own, Content: []byte(strings.Repeat(own, 10_000))}, imagetest.Opaque("dir")},
		}}
	}
	a.first, a.second = build(t, spec("first")), build(t, spec("second"))
	a.registry.Push("first", "1", a.first)
	a.registry.Push("second", "1", a.second)
	a.Images = open(t, cfg)
	var err error
	if a.firstID, err = a.Pull(t.Context(), a.host+"/first:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if a.other, err = a.Pull(t.Context(), a.host+"/second:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Prepare(t.Context(), image.RootfsSpec{Key: "c1", ImageID: a.other}); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *audited) check(t *testing.T, repair bool) []image.Damage {
	t.Helper()
	report, err := a.Check(t.Context(), repair, nil)
	if err != nil {
		t.Fatal(err)
	}
	if report.Blobs != 7 || len(report.Damage) == 0 && (report.Layers != 3 || len(report.Notes)+len(report.Unchecked) > 0) {
		t.Errorf("report %+v", report)
	}
	return report.Damage
}

// alter changes a file of the store, whatever its mode.
func alter(t *testing.T, path string, change func(data []byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDiskUseIsWhatTheStoreUses(t *testing.T) {
	a := audit(t)
	use, err := a.DiskUse(t.Context())
	if err != nil || len(use.Images) != 2 || len(use.Kept) != 0 {
		t.Fatalf("%+v, %v", use, err)
	}
	usage, err := a.Usage(t.Context())
	if err != nil || usage.Images[0].Bytes != use.Total {
		t.Errorf("total %d, the store says %+v, %v", use.Total, usage, err)
	}
	shared := use.Images[0].Shared
	if own := use.Images[0].Own + use.Images[1].Own; shared == 0 || shared != use.Images[1].Shared || own+shared != use.Total {
		t.Errorf("own and shared are not the total: %+v", use)
	}
	for _, u := range use.Images {
		wantContainers := []string{}
		if u.ID == a.other {
			wantContainers = []string{"c1"}
		}
		if u.Content+u.Layers != u.Own+u.Shared || !slices.Equal(u.Containers, wantContainers) || len(u.Names) != 1 {
			t.Errorf("image %+v", u)
		}
	}
	if err := a.Remove(t.Context(), a.other); err != nil {
		t.Fatal(err)
	}
	use, err = a.DiskUse(t.Context())
	if err != nil || len(use.Images) != 1 || len(use.Kept) != 1 || use.Kept[0].Bytes == 0 || !slices.Equal(use.Kept[0].Containers, []string{"c1"}) {
		t.Errorf("after the removal of an image in use: %+v, %v", use, err)
	}
}

// TestCheckLeavesNoFiles: a check unpacks all layers again, and leaves the disk as it was.
func TestCheckLeavesNoFiles(t *testing.T) {
	a := audit(t)
	snapshots := func() []string {
		dirs, err := filepath.Glob(filepath.Join(a.cfg.Root, "snapshots/snapshots/*"))
		if err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	before := snapshots()
	if damage := a.check(t, false); len(damage) > 0 {
		t.Errorf("the check has found %v", damage)
	}
	if after := snapshots(); !slices.Equal(after, before) {
		t.Errorf("after the check the snapshots are %q, want %q", after, before)
	}
}

func TestCheckFindsAndRepairsBlobs(t *testing.T) {
	a := audit(t)
	if damage := a.check(t, true); len(damage) > 0 {
		t.Fatalf("an intact store: %+v", damage)
	}
	layer, manifest, config := a.first.Layers[1].Digest, a.first.Manifest.Digest, a.second.Config.Digest
	shared := a.first.Layers[0].Digest
	alter(t, a.db.BlobPath(layer), func(data []byte) []byte { return data[:len(data)/2] })
	alter(t, a.db.BlobPath(manifest), func(data []byte) []byte { data[20] ^= 1; return data })
	alter(t, a.db.BlobPath(config), func(data []byte) []byte { clear(data); return data })
	if err := os.Remove(a.db.BlobPath(shared)); err != nil {
		t.Fatal(err)
	}
	want := map[digest.Digest]string{
		layer: "bytes, want", manifest: "another digest", config: "zeroes only", shared: "missing",
	}
	expect := func(damage []image.Damage, repaired bool) {
		t.Helper()
		if len(damage) != len(want) {
			t.Errorf("%d damaged objects: %+v", len(damage), damage)
		}
		for _, d := range damage {
			if d.Object != "blob" || !strings.Contains(d.Problem, want[d.Digest]) || want[d.Digest] == "" || d.Repaired != repaired || repaired == (d.Advice != "") {
				t.Errorf("damage %+v", d)
			}
		}
	}
	expect(a.check(t, false), false)
	a.registry.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	expect(a.check(t, true), false)
	a.registry.Intercept = nil
	expect(a.check(t, true), true)
	if damage := a.check(t, false); len(damage) > 0 {
		t.Errorf("left: %+v", damage)
	}
	if left, _ := filepath.Glob(filepath.Join(a.db.ContentDir(), "mending-*")); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
	cfg := a.cfg
	a.Close()
	again := open(t, cfg)
	if list, err := again.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("after a restart: %+v, %v", list, err)
	}
}

func TestCheckFindsAndRepairsLayers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"flipped": {func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, "dir/first"))
			if err != nil {
				return err
			}
			data[5] ^= 1
			return os.WriteFile(filepath.Join(dir, "dir/first"), data, 0)
		}, "dir/first: other content after byte 0"},
		"zeroed": {func(dir string) error {
			path := filepath.Join(dir, "dir/first")
			fi, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, make([]byte, fi.Size()), 0)
		}, "dir/first: zeroes at byte 0"},
		"truncated": {func(dir string) error { return os.Truncate(filepath.Join(dir, "dir/first"), 7) }, "dir/first: it has 7 bytes, want 50000"},
		"removed":   {func(dir string) error { return os.Remove(filepath.Join(dir, "dir/first")) }, "dir/first: no such file"},
		"mode":      {func(dir string) error { return os.Chmod(filepath.Join(dir, "dir"), 0o777) }, "dir: its mode is 40777, want 40750"},
		"added":     {func(dir string) error { return os.WriteFile(filepath.Join(dir, "new"), nil, 0o600) }, "new: it is not in the layer"},
		"emptied":   {os.RemoveAll, "no such file"},
		"all gone":  {func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			a := audit(t)
			top := filepath.Join(a.db.LayersDir(), lowerOf(t, a.Images, a.firstID)[0])
			if err := c.change(top); err != nil {
				t.Fatal(err)
			}
			expect := func(repair, repaired bool) {
				t.Helper()
				damage := a.check(t, repair)
				if len(damage) != 1 || damage[0].Object != "layer" || !strings.Contains(damage[0].Problem, c.want) || damage[0].Repaired != repaired ||
					!slices.Equal(damage[0].Images, []string{a.host + "/first:1"}) || len(damage[0].Containers) != 0 {
					t.Errorf("damage %+v, want %s", damage, c.want)
				}
			}
			expect(false, false)
			expect(true, true)
			if damage := a.check(t, false); len(damage) > 0 {
				t.Errorf("left: %+v", damage)
			}
			m, err := a.Prepare(t.Context(), image.RootfsSpec{Key: "c2", ImageID: a.firstID})
			if err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(m.Path, "dir/first")); err != nil || string(data) != strings.Repeat("first", 10_000) {
				t.Errorf("the container sees %d bytes, %v", len(data), err)
			}
		})
	}
}

// TestCheckOnAFullDisk: a check that cannot unpack a layer, to compare it, does not pass it over.
func TestCheckOnAFullDisk(t *testing.T) {
	cfg := testConfig(t)
	fill := onSmallDisk(t, &cfg, smallDisk)
	s := open(t, cfg)
	list, err := s.Import(t.Context(), archiveOf(t, imagetest.Spec{Name: "app:1", Layers: []imagetest.Layer{{{Path: "file", Content: make([]byte, 8<<20)}}}}), "", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(4 << 20)
	for _, repair := range []bool{false, true} {
		report, err := s.Check(t.Context(), repair, nil)
		if err != nil || report.Layers != 0 || len(report.Damage) != 0 || len(report.Unchecked) != 1 || !strings.Contains(report.Unchecked[0], "the disk has left") {
			t.Errorf("repair %t of %s: %+v, %v", repair, list[0].ID, report, err)
		}
	}
	fill(32 << 20)
	report, err := s.Check(t.Context(), true, nil)
	if err != nil || report.Layers != 1 || len(report.Damage)+len(report.Unchecked) != 0 {
		t.Errorf("with space: %+v, %v", report, err)
	}
}

// TestCheckSaysEachCauseOnce: why a blob of several images cannot be fetched is said once, with the repositories that it concerns.
// Each repository is asked once. A second check names the command that lists the first one.
func TestCheckSaysEachCauseOnce(t *testing.T) {
	a := audit(t)
	third := build(t, imagetest.Spec{Compression: "gzip", Layers: []imagetest.Layer{
		{{Path: ".", Dir: true, Mode: 0o751}, {Path: "base", Content: []byte(strings.Repeat("base", 10_000)), Xattrs: map[string]string{"user.x": "y"}}, {Path: "link", Symlink: "base"}},
		{{Path: "third"}},
	}})
	a.registry.Push("first", "2", third)
	if _, err := a.Pull(t.Context(), a.host+"/first:2", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	shared := a.first.Layers[0].Digest
	alter(t, a.db.BlobPath(shared), func(data []byte) []byte { clear(data); return data })
	running, asked := make(chan struct{}, 10), make(chan struct{})
	a.registry.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		running <- struct{}{}
		<-asked
		http.NotFound(w, req)
		return true
	}
	type outcome struct {
		report *image.CheckReport
		err    error
	}
	checked := make(chan outcome, 1)
	go func() {
		report, err := a.Check(t.Context(), true, nil)
		checked <- outcome{report, err}
	}()
	<-running
	if _, err := a.Check(t.Context(), false, nil); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "berth jobs") {
		t.Errorf("a second check: %v", err)
	}
	close(asked)
	got := <-checked
	if got.err != nil || len(got.report.Damage) != 1 || len(got.report.Damage[0].Images) != 3 {
		t.Fatalf("%+v, %v", got.report, got.err)
	}
	advice := got.report.Damage[0].Advice
	if want := a.host + "/first, " + a.host + "/second: "; strings.Count(advice, a.host+"/first") != 1 || !strings.Contains(advice, want) {
		t.Errorf("want one cause of %s in %q", want, advice)
	}
	if requests := len(running) + 1; requests != 2 {
		t.Errorf("%d requests, want one for each repository", requests)
	}
	// The URL in this cause has the name of the first repository.
	a.registry.Intercept = func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	report, err := a.Check(t.Context(), true, nil)
	if err != nil || len(report.Damage) != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	advice = report.Damage[0].Advice
	if want := a.host + "/first, " + a.host + "/second: "; strings.Count(advice, "EOF") != 1 || !strings.Contains(advice, want) {
		t.Errorf("want one cause of %s in %q", want, advice)
	}
}

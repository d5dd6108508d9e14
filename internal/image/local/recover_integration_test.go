//go:build integration

package local

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// imported opens a store with one image of three layers.
func imported(t *testing.T) (*Images, image.Image) {
	t.Helper()
	s := open(t, testConfig(t))
	spec := imagetest.Spec{Name: "app:1"}
	for _, name := range []string{"low", "mid", "top"} {
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: name, Content: []byte(name)}})
	}
	list, err := s.Import(context.Background(), archiveOf(t, spec), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, list[0]
}

func reopen(t *testing.T, s *Images) *Images {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, s.cfg)
}

func wantFiles(t *testing.T, s *Images, id string) {
	t.Helper()
	ctx := context.Background()
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "probe", ImageID: id})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"low", "mid", "top"} {
		if data, err := os.ReadFile(filepath.Join(m.Path, name)); err != nil || string(data) != name {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if err := s.Release(ctx, "probe"); err != nil {
		t.Fatal(err)
	}
}

// damage truncates every file of every unpacked layer, as a power loss does to unsynced data.
func damage(t *testing.T, s *Images) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.db.LayersDir(), "*/fs/*"))
	if err != nil || len(files) != 3 {
		t.Fatalf("files of layers: %v, %v", files, err)
	}
	for _, file := range files {
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// chains returns the names of the snapshots of an image, from top to bottom.
func chains(t *testing.T, s *Images, id string) []string {
	t.Helper()
	var names []string
	img, err := s.Get(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	for chain := img.ChainID; chain != ""; {
		names = append(names, chain)
		info, err := s.db.Snapshots.Stat(database.WithNamespace(context.Background()), chain)
		if err != nil {
			t.Fatal(err)
		}
		chain = info.Parent
	}
	return names
}

// lowerOf lists the directories of an image's layers, from top to bottom, relative to the layers'
// directory.
func lowerOf(t *testing.T, s *Images, id string) []string {
	t.Helper()
	img, err := s.Get(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	lower, err := s.db.LowerDirs(database.WithNamespace(context.Background()), img.ChainID)
	if err != nil {
		t.Fatal(err)
	}
	return lower
}

// unsynced is a record of package layers in its format on disk.
type unsynced struct {
	Boot      string   `json:"boot"`
	Snapshots []string `json:"snapshots"`
}

// leaveUnsynced creates the state of a sync that did not complete.
func leaveUnsynced(t *testing.T, s *Images, m unsynced) {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(layers.UnsyncedDir(s.cfg.Root), "m"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLossOfPowerBeforeTheSyncUnpacksAgain(t *testing.T) {
	s, img := imported(t)
	m := unsynced{Boot: "another boot", Snapshots: chains(t, s, img.ID)}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	damage(t, s)
	leaveUnsynced(t, s, m)
	s = open(t, s.cfg)
	if got, err := s.Get(context.Background(), "app:1"); err != nil || !got.Pinned {
		t.Fatalf("the image after a loss of power: %+v, %v", got, err)
	}
	wantFiles(t, s, img.ID)
}

func TestKillBeforeTheSyncKeepsTheLayers(t *testing.T) {
	s, img := imported(t)
	boot, err := sysproc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	m := unsynced{Boot: boot, Snapshots: chains(t, s, img.ID)}
	before := lowerOf(t, s, img.ID)[0]
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	leaveUnsynced(t, s, m)
	s = open(t, s.cfg)
	if after := lowerOf(t, s, img.ID); after[0] != before {
		t.Error("layers were unpacked again although power was never lost")
	}
	s.Close()
	if left, _ := os.ReadDir(layers.UnsyncedDir(s.cfg.Root)); len(left) > 0 {
		t.Error("the list stays after the sync")
	}
}

func TestLostLayerIsUnpackedAgain(t *testing.T) {
	s, img := imported(t)
	lost := filepath.Join(s.db.LayersDir(), lowerOf(t, s, img.ID)[1])
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(lost); err != nil {
		t.Fatal(err)
	}
	s = open(t, s.cfg)
	wantFiles(t, s, img.ID)
}

func TestImageWithLostContentIsRemovedAndCanBePulledAgain(t *testing.T) {
	s, img := imported(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(s.db.ContentDir(), "blobs", strings.Replace(img.ID, ":", "/", 1))
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	s = open(t, s.cfg)
	if _, err := s.Get(context.Background(), img.ID); !errors.Is(err, errs.NotFound) {
		t.Errorf("damaged image: %v", err)
	}
	s.Close()
	assertEmpty(t, s)
}

func TestRootfsSurvivesRestartAndRemovalOfItsImage(t *testing.T) {
	ctx := context.Background()
	s, img := imported(t)
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.Path, "written"), []byte("w"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, img.ID); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if keys, err := s.Keys(ctx); err != nil || len(keys) != 1 || keys[0] != "c" {
		t.Errorf("keys %v, %v", keys, err)
	}
	// A reboot removes the mount and the state directory.
	if err := syscall.Unmount(m.Path, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(s.cfg.State); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if m, err = s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: img.ID}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"written": "w", "low": "low", "top": "top"} {
		if data, err := os.ReadFile(filepath.Join(m.Path, name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if err := errors.Join(s.Release(ctx, "c"), s.Release(ctx, "c")); err != nil {
		t.Error(err)
	}
	s.Close()
	assertEmpty(t, s)
}

func TestPrepareTwiceAndWrongly(t *testing.T) {
	ctx := context.Background()
	s, img := imported(t)
	one, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: img.ID})
	if err != nil || *one != *two {
		t.Errorf("again: %+v, %v", two, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(mounts), one.Path+" "); n != 1 {
		t.Errorf("%d mounts", n)
	}
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "d", ImageID: "sha256:" + strings.Repeat("0", 64)}); !errors.Is(err, errs.NotFound) {
		t.Errorf("absent image: %v", err)
	}
	if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: "sha256:" + strings.Repeat("0", 64)}); !errors.Is(err, errs.Exists) {
		t.Errorf("other image: %v", err)
	}
	for _, key := range []string{"", ".", "..", "../x", "a/b", "a b", "-x", strings.Repeat("x", 200)} {
		if _, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: img.ID}); !errors.Is(err, errs.Invalid) {
			t.Errorf("Prepare(%q): %v", key, err)
		}
		if err := s.Release(ctx, key); !errors.Is(err, errs.Invalid) {
			t.Errorf("Release(%q): %v", key, err)
		}
	}
	if err := s.Release(ctx, "never"); err != nil {
		t.Errorf("release of nothing: %v", err)
	}
	if _, err := s.WritableUsage(ctx, "never", nil); !errors.Is(err, errs.NotFound) {
		t.Errorf("usage of nothing: %v", err)
	}
}

func TestModesDoNotDependOnTheUmask(t *testing.T) {
	for _, umask := range []int{0, 0o077} {
		old := syscall.Umask(umask)
		s, img := imported(t)
		m, err := s.Prepare(context.Background(), image.RootfsSpec{Key: "c", ImageID: img.ID})
		syscall.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]os.FileMode{
			s.cfg.Root: 0o700, s.rootfs.ContainersDir(): 0o700, s.rootfs.MountsDir(): 0o700, filepath.Join(s.rootfs.ContainersDir(), "c"): 0o700,
			m.Path: 0o755, filepath.Join(m.Path, "low"): 0o644,
		} {
			if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != want {
				t.Errorf("umask %03o: %s: %v, %v, want %o", umask, path, fi.Mode(), err, want)
			}
		}
	}
}

func TestStoreIsLockedByOneProcess(t *testing.T) {
	s, _ := imported(t)
	if _, err := Open(context.Background(), s.cfg); !errors.Is(err, errs.Unavailable) {
		t.Errorf("second open: %v", err)
	}
	for _, root := range []string{"", "relative", "/with:colon", "/with,comma"} {
		cfg := s.cfg
		cfg.Root = root
		if _, err := Open(context.Background(), cfg); !errors.Is(err, errs.Invalid) {
			t.Errorf("root %q: %v", root, err)
		}
	}
}

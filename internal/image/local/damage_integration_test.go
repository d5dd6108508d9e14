//go:build integration

package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// damages are the kinds of damage to a database.
func damages(t *testing.T) map[string]func(path string) error {
	t.Helper()
	junk := make([]byte, 16<<10)
	if _, err := rand.Read(junk); err != nil {
		t.Fatal(err)
	}
	rewrite := func(change func(data []byte) []byte) func(string) error {
		return func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, change(data), 0o600)
		}
	}
	return map[string]func(string) error{
		"first pages overwritten": rewrite(func(data []byte) []byte { copy(data, junk); return data }),
		"half of it":              rewrite(func(data []byte) []byte { return data[:len(data)/2] }),
		"inner pages overwritten": rewrite(func(data []byte) []byte {
			for at := 2 * os.Getpagesize(); at < len(data); at += len(junk) {
				copy(data[at:], junk)
			}
			return data
		}),
		"inner pages of zeros": rewrite(func(data []byte) []byte { clear(data[2*os.Getpagesize():]); return data }),
		"all zeros":            rewrite(func(data []byte) []byte { clear(data); return data }),
		"no bytes":             rewrite(func([]byte) []byte { return nil }),
		"gone":                 os.Remove,
		"a new one": func(path string) error {
			db, err := bbolt.Open(path+".new", 0o600, nil)
			if err != nil {
				return err
			}
			return errors.Join(db.Close(), os.Rename(path+".new", path))
		},
	}
}

// inodeOf returns the inode of a file of a layer, which shows whether the layer is the same as
// before.
func inodeOf(t *testing.T, s *Images, id string) uint64 {
	t.Helper()
	fi, err := os.Stat(filepath.Join(s.db.LayersDir(), lowerOf(t, s, id)[0]))
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t).Ino
}

// running returns a store with two images and two mounted root filesystems. One image is pinned.
// One root filesystem is of a removed image.
func running(t *testing.T) (s *Images, pinned, plain image.Image) {
	t.Helper()
	ctx := context.Background()
	s, pinned = imported(t)
	list, err := s.Import(ctx, archiveOf(t,
		imagetest.Spec{Name: "plain:1", Layers: []imagetest.Layer{{{Path: "p", Content: []byte("plain")}}}},
		imagetest.Spec{Name: "gone:1", Layers: []imagetest.Layer{{{Path: "g", Content: []byte("gone")}}}},
	), "", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(img image.Image) bool { return slices.Contains(img.Tags, "docker.io/library/plain:1") })
	plain = list[i]
	for key, id := range map[string]string{"c": pinned.ID, "orphan": list[1-i].ID} {
		m, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: id})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(m.Path, "written"), []byte("w"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(ctx, "gone:1"); err != nil {
		t.Fatal(err)
	}
	return s, pinned, plain
}

// runs checks that the containers of running can read their files.
func runs(t *testing.T, s *Images) {
	t.Helper()
	for file, want := range map[string]string{"c/low": "low", "c/top": "top", "c/written": "w", "orphan/g": "gone", "orphan/written": "w"} {
		if data, err := os.ReadFile(filepath.Join(s.rootfs.MountsDir(), file)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", file, data, err)
		}
	}
}

func TestDamagedDatabaseIsMadeAgain(t *testing.T) {
	for kind, damage := range damages(t) {
		for _, which := range []string{"metadata", "snapshots", "both"} {
			t.Run(kind+" "+which, func(t *testing.T) {
				ctx := context.Background()
				s, pinned, plain := running(t)
				inode := inodeOf(t, s, pinned.ID)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				paths := map[string][]string{"metadata": {s.db.MetadataFile()}, "snapshots": {s.db.SnapshotsFile()}, "both": {s.db.MetadataFile(), s.db.SnapshotsFile()}}
				for _, path := range paths[which] {
					if err := damage(path); err != nil {
						t.Fatal(err)
					}
				}
				s = open(t, s.cfg)
				runs(t, s)
				if got, err := s.Get(ctx, "app:1"); err != nil || got.ID != pinned.ID || !got.Pinned || !slices.Equal(got.Digests, pinned.Digests) {
					t.Errorf("the pinned image: %+v, %v", got, err)
				}
				if got, err := s.Get(ctx, "plain:1"); err != nil || got.ID != plain.ID || got.Pinned || got.Size != plain.Size {
					t.Errorf("the other image: %+v, %v", got, err)
				}
				if _, err := s.Get(ctx, pinned.ID); err == nil && inodeOf(t, s, pinned.ID) != inode {
					t.Error("layers were unpacked again although their directories are there")
				}
				if faults := s.SetAside(); len(faults) != 1 || !strings.Contains(faults[0], "2 images") || !strings.Contains(faults[0], s.repair.QuarantineDir()) {
					t.Errorf("what is said of it: %q", faults)
				}
				wantFiles(t, s, pinned.ID)
				s = reopen(t, s)
				runs(t, s)
				if faults := s.SetAside(); len(faults) != 1 {
					t.Errorf("after the next start: %q", faults)
				}
				if err := errors.Join(s.Release(ctx, "c"), s.Release(ctx, "orphan"), s.Remove(ctx, "app:1"), s.Remove(ctx, "plain:1")); err != nil {
					t.Error(err)
				}
				if err := os.RemoveAll(s.repair.QuarantineDir()); err != nil {
					t.Fatal(err)
				}
				if faults := s.SetAside(); len(faults) != 0 {
					t.Errorf("after the quarantine was removed: %q", faults)
				}
				s = reopen(t, s)
				s.Close()
				assertEmpty(t, s)
			})
		}
	}
}

// TestDamageWithoutTheCopyOfNames: images have their ids, so that images of running containers are
// known.
func TestDamageWithoutTheCopyOfNames(t *testing.T) {
	ctx := context.Background()
	s, pinned, plain := running(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(s.cfg.Root, "names.json")), os.Truncate(s.db.MetadataFile(), 0)); err != nil {
		t.Fatal(err)
	}
	s = open(t, s.cfg)
	runs(t, s)
	for _, id := range []string{pinned.ID, plain.ID} {
		if got, err := s.Get(ctx, id); err != nil || len(got.Tags) != 0 {
			t.Errorf("image %s: %+v, %v", id, got, err)
		}
	}
	if faults := s.SetAside(); len(faults) != 1 || !strings.Contains(faults[0], "2 of them without names") {
		t.Errorf("what is said of it: %q", faults)
	}
	wantFiles(t, s, pinned.ID)
}

// TestDamageOfADatabaseAndContent: the error names images that cannot be restored. Content that
// belongs to no image is quarantined and not removed.
func TestDamageOfADatabaseAndContent(t *testing.T) {
	ctx := context.Background()
	s, pinned, plain := running(t)
	lost := s.db.BlobPath(digest.Digest(plain.ID))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(lost), os.Truncate(s.db.MetadataFile(), 0)); err != nil {
		t.Fatal(err)
	}
	var before int
	count := func(root string) (n int) {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && strings.Contains(path, "blobs/sha256/") {
				n++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before = count(s.db.ContentDir())
	s = open(t, s.cfg)
	runs(t, s)
	if _, err := s.Get(ctx, "plain:1"); !errors.Is(err, errs.NotFound) {
		t.Errorf("the image that lost its config: %v", err)
	}
	if faults := s.Faults(); len(faults) != 1 || !strings.Contains(faults[0], "docker.io/library/plain:1") {
		t.Errorf("what is said of it: %q", faults)
	}
	wantFiles(t, s, pinned.ID)
	if after := count(s.db.ContentDir()) + count(s.repair.QuarantineDir()); after != before {
		t.Errorf("%d blobs are left of %d", after, before)
	}
}

// TestInterruptedRebuildStartsAgain does not kill a process. It creates the state that a kill
// leaves.
func TestInterruptedRebuildStartsAgain(t *testing.T) {
	s, pinned, _ := running(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.db.MetadataFile(), 0); err != nil {
		t.Fatal(err)
	}
	why := errors.New("cut short")
	ctx := database.WithNamespace(context.Background())
	under, err := s.repair.SetAside(ctx, why)
	if err != nil {
		t.Fatal(err)
	}
	half := database.New(s.cfg.paths(), s.trash.Discard, s.log)
	if err := half.Open(ctx); err != nil {
		t.Fatal(err)
	}
	// The rebuild stops after it has restored the layers of images, and before those of root
	// filesystems.
	cut := func() ([]string, error) { return nil, why }
	if err := s.repair.Rebuild(ctx, half, under, cut); !errors.Is(err, why) {
		t.Fatalf("rebuild: %v, want %v", err, why)
	}
	if err := half.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, s.cfg)
	runs(t, s)
	wantFiles(t, s, pinned.ID)
	if faults := s.SetAside(); len(faults) != 1 || !strings.Contains(faults[0], "2 images") {
		t.Errorf("what is said of it: %q", faults)
	}
}

// TestStoreOfAnEarlierVersionGetsLabels: the store labels its layers, so that they can be found
// after a later damage.
func TestStoreOfAnEarlierVersionGetsLabels(t *testing.T) {
	s, pinned, _ := running(t)
	inode := inodeOf(t, s, pinned.ID)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	labels, err := filepath.Glob(filepath.Join(s.db.LayersDir(), "*", database.LabelName))
	if err != nil || len(labels) != 5 {
		t.Fatalf("labels %v, %v", labels, err)
	}
	for _, label := range labels {
		if err := os.Remove(label); err != nil {
			t.Fatal(err)
		}
	}
	// This happens at the first start after the update.
	if err := os.Truncate(s.db.MetadataFile(), 4096); err != nil {
		t.Fatal(err)
	}
	s = open(t, s.cfg)
	runs(t, s)
	if inodeOf(t, s, pinned.ID) != inode {
		t.Error("layers were unpacked again")
	}
	wantFiles(t, s, pinned.ID)
}

// TestDamageThatOnlyReadersFind: the pages are valid, but their content is not.
func TestDamageThatOnlyReadersFind(t *testing.T) {
	s, pinned, _ := running(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(s.db.MetadataFile(), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	garbled := 0
	err = db.Update(func(tx *bbolt.Tx) error {
		images := tx.Bucket([]byte("v1")).Bucket([]byte("k8s.io")).Bucket([]byte("images"))
		return images.ForEachBucket(func(name []byte) error {
			garbled++
			return images.Bucket(name).Put([]byte("createdat"), bytes.Repeat([]byte{0xff}, 3))
		})
	})
	if err := errors.Join(err, db.Close()); err != nil || garbled == 0 {
		t.Fatalf("%d records garbled: %v", garbled, err)
	}
	s = open(t, s.cfg)
	runs(t, s)
	wantFiles(t, s, pinned.ID)
	if len(s.SetAside()) != 1 {
		t.Errorf("what is said of it: %q", s.SetAside())
	}
}

// TestUndamagedStoreIsNotChanged: an ordinary start changes nothing.
func TestUndamagedStoreIsNotChanged(t *testing.T) {
	s, _, _ := running(t)
	s = reopen(t, s)
	if faults := s.SetAside(); len(faults) != 0 {
		t.Errorf("%q", faults)
	}
	if _, err := os.Lstat(s.repair.QuarantineDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a quarantine: %v", err)
	}
	if err := s.Remove(context.Background(), "plain:1"); err != nil {
		t.Fatal(err)
	}
	names, _, err := s.db.ReadNames()
	if err != nil || len(names) != 3 { // app:1 by tag, digest and id
		t.Errorf("the copy of the names: %v, %v", fmt.Sprint(names), err)
	}
}

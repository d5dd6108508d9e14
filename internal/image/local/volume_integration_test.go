//go:build integration

package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// capability is a file capability as in layers: net_raw, permitted and effective.
const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

var volumeLayers = []imagetest.Layer{
	{
		{Path: "data", Dir: true, Mode: 0o1770, UID: 70, GID: 70},
		{Path: "data/low", Content: []byte("low"), UID: 70, GID: 70, Mode: 0o600},
		{Path: "data/hidden", Content: []byte("x")},
		{Path: "data/ping", Content: []byte("x"), Mode: 0o4755, Xattrs: map[string]string{"security.capability": capability, "user.note": "n"}},
		{Path: "data/again", Hardlink: "data/low", UID: 70, GID: 70, Mode: 0o600},
		{Path: "data/out", Symlink: "/etc/passwd"},
	},
	{{Path: "data", Dir: true, Mode: 0o1770, UID: 70, GID: 70}, imagetest.Whiteout("data/hidden"), {Path: "data/top", Content: []byte("top")}},
}

// TestVolumeIsACopyOfTheImage: a volume is separate from the root filesystem, and is removed with
// it.
func TestVolumeIsACopyOfTheImage(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	list, err := s.Import(ctx, archiveOf(t, imagetest.Spec{Name: "app:1", Layers: volumeLayers}), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: list[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.WritableUsage(ctx, "c", nil)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "c", Name: "0", From: filepath.Join(mounted.Path, "data")})
	if err != nil {
		t.Fatal(err)
	}
	wantOwner(t, dir, 70, 0o1770)
	wantOwner(t, filepath.Join(dir, "low"), 70, 0o600)
	wantOwner(t, filepath.Join(dir, "ping"), 0, 0o4755)
	for name, want := range map[string]string{"low": "low", "again": "low", "top": "top"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "out")); err != nil || to != "/etc/passwd" {
		t.Errorf("a link leads to %q, %v", to, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "hidden")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a layer deleted: %v", err)
	}
	value := make([]byte, 64)
	if n, err := unix.Lgetxattr(filepath.Join(dir, "ping"), "security.capability", value); err != nil || string(value[:n]) != capability {
		t.Errorf("capability %x, %v", value[:max(n, 0)], err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		t.Errorf("it is on an overlay: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(mounted.Path, "data", "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is written to it is in the root filesystem: %v", err)
	}
	if after, err := s.WritableUsage(ctx, "c", nil); err != nil || after.Bytes < before.Bytes+1<<20 {
		t.Errorf("usage was %+v and is %+v, %v", before, after, err)
	}
	if err := s.Release(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the release: %v", err)
	}
	if err := s.Remove(ctx, list[0].ID); err != nil {
		t.Fatal(err)
	}
	s.Close()
	assertEmpty(t, s)
}

func TestVolumeOfAUserNamespace(t *testing.T) {
	ctx := context.Background()
	inUserNS(t, func(s *Images, _ image.Image, m *image.UserMap) {
		list, err := s.Import(ctx, archiveOf(t, imagetest.Spec{Name: "data:1", Layers: volumeLayers}), "", true, nil)
		if err != nil {
			t.Fatal(err)
		}
		mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: list[0].ID, Map: m})
		if err != nil {
			t.Fatal(err)
		}
		dir, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "c", Name: "0", From: filepath.Join(mounted.Path, "data"), UID: m.UID, GID: m.GID})
		if err != nil {
			t.Fatal(err)
		}
		wantOwner(t, dir, mappedRoot+70, 0o1770)
		wantOwner(t, filepath.Join(dir, "low"), mappedRoot+70, 0o600)
		wantOwner(t, filepath.Join(dir, "ping"), mappedRoot, 0o4755)
		// The capability names the namespace's root, so a program on the host gets nothing from it.
		value := make([]byte, 64)
		if n, err := unix.Lgetxattr(filepath.Join(dir, "ping"), "security.capability", value); err != nil || n != 24 {
			t.Errorf("capability %x, %v", value[:max(n, 0)], err)
		}
		empty, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "c", Name: "1", UID: m.UID, GID: m.GID})
		if err != nil {
			t.Fatal(err)
		}
		wantOwner(t, empty, mappedRoot, 0o755)
		if err := errors.Join(s.Release(ctx, "c"), s.Remove(ctx, list[0].ID)); err != nil {
			t.Error(err)
		}
	})
}

func TestVolumeRefusals(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	list, err := s.Import(ctx, archiveOf(t, imagetest.Spec{Name: "app:1", Layers: volumeLayers}), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "c", Name: "0"}); !errors.Is(err, errs.NotFound) {
		t.Errorf("without a root filesystem: %v", err)
	}
	mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: list[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "..", "a/b"} {
		if _, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "c", Name: name}); !errors.Is(err, errs.Invalid) {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	if _, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "c", Name: "0"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.MakeVolume(ctx, image.VolumeSpec{Key: "c", Name: "0"}); !errors.Is(err, errs.Exists) {
		t.Errorf("again: %v", err)
	}
	// An interrupted copy is removed with the root filesystem.
	ending, cancel := context.WithCancel(ctx)
	tell := func(sysfile.Copied) { cancel() }
	if _, err := s.MakeVolume(ending, image.VolumeSpec{Key: "c", Name: "1", From: filepath.Join(mounted.Path, "data"), Progress: tell}); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if err := errors.Join(s.Release(ctx, "c"), s.Remove(ctx, list[0].ID)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	assertEmpty(t, s)
}

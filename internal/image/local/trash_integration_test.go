//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

func manyFiles(t *testing.T, dir string, n int) {
	t.Helper()
	if err := imagetest.ManyFiles(dir, n); err != nil {
		t.Fatal(err)
	}
}

// trashEmpties waits until everything is removed.
func trashEmpties(t *testing.T, s *Images) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		left, err := os.ReadDir(s.cfg.trashDir())
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still in the trash: %v", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// removalBegins waits until the first of many directories in the trash is removed. Close does not
// wait for a removal that has not begun.
func removalBegins(t *testing.T, dirs string, many int) {
	t.Helper()
	for left := many; left == many; {
		found, err := filepath.Glob(dirs)
		if err != nil {
			t.Fatal(err)
		}
		left = len(found)
	}
}

// TestCloseDoesNotWaitForRemovals: a container that wrote 300,000 files delayed the stop of the
// daemon by minutes. Close interrupts the removal, and the next start continues it.
func TestCloseDoesNotWaitForRemovals(t *testing.T) {
	ctx := context.Background()
	s, img := imported(t)
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	manyFiles(t, m.Path, 30_000)
	s.background.CloseTimeout = 0
	s.trash.Slice = time.Hour // only Close ends the removal, not a turn
	if err := s.Release(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	dirs := filepath.Join(s.cfg.trashDir(), "*", "upper", "*")
	removalBegins(t, dirs, 30)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(dirs); err != nil || len(left) == 0 {
		t.Errorf("Close has waited for the whole removal: %v", err)
	}
	s = open(t, s.cfg)
	if keys, err := s.Keys(ctx); err != nil || len(keys) > 0 {
		t.Errorf("root filesystems after the next start: %v, %v", keys, err)
	}
	trashEmpties(t, s)
}

// TestRemovedLayersAreRemovedInTheBackground: a layer may have as many files as a container can
// write.
func TestRemovedLayersAreRemovedInTheBackground(t *testing.T) {
	ctx := context.Background()
	s, img := imported(t)
	manyFiles(t, filepath.Join(s.db.LayersDir(), lowerOf(t, s, img.ID)[0]), 30_000)
	s.background.CloseTimeout = 0
	s.trash.Slice = time.Hour // only Close ends the removal, not a turn
	if err := s.Remove(ctx, img.ID); err != nil {
		t.Fatal(err)
	}
	dirs := filepath.Join(s.cfg.trashDir(), "*", "fs", "[0-9]*")
	removalBegins(t, dirs, 30)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(dirs); err != nil || len(left) == 0 {
		t.Errorf("who removed the image, or closed the store, has waited for all files: %v", err)
	}
	s = open(t, s.cfg)
	trashEmpties(t, s)
	s.Close()
	assertEmpty(t, s)
}

// TestBacklogOfRemovalsDoesNotDelayTheStart: a start with thousands of stale directories returns
// before they are removed.
func TestBacklogOfRemovalsDoesNotDelayTheStart(t *testing.T) {
	ctx := context.Background()
	s, img := imported(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		stale := filepath.Join(s.cfg.trashDir(), fmt.Sprint("stale", i))
		if i%2 == 0 {
			stale = filepath.Join(s.rootfs.PoolDir(), fmt.Sprint("stale", i))
		}
		manyFiles(t, stale, 10)
	}
	manyFiles(t, filepath.Join(s.cfg.trashDir(), "aaa-large"), 10_000)
	begin := time.Now()
	s = open(t, s.cfg)
	opened := time.Since(begin)
	if left, err := os.ReadDir(s.cfg.trashDir()); err != nil || len(left) == 0 {
		t.Errorf("the start has waited for the backlog: %v", err)
	}
	wantFiles(t, s, img.ID)
	trashEmpties(t, s)
	t.Logf("open took %v, the backlog went within %v", opened, time.Since(begin))
	if _, err := s.Get(ctx, img.ID); err != nil {
		t.Error(err)
	}
}

// TestProbeThatWasKilled: a process that is killed while it tries a mount in a directory of the pool leaves
// the mount. The next start unmounts it, and removes the directory.
func TestProbeThatWasKilled(t *testing.T) {
	s, _ := imported(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	pool := s.rootfs.PoolDir()
	upper := filepath.Join(pool, "probe", "upper")
	manyFiles(t, upper, 1)
	for _, name := range []string{"layers", "rootfs"} {
		at := filepath.Join(pool, "probe", name)
		if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount(upper, at, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	s = open(t, s.cfg)
	trashEmpties(t, s)
	if left := mountsBelow(t, s.cfg.Root); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestReleaseAfterCloseIsQuiet: a container that ends while the daemon does leaves its layers to the next start.
func TestReleaseAfterCloseIsQuiet(t *testing.T) {
	ctx := context.Background()
	s, _, _ := running(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var logged lines
	cfg := s.cfg
	cfg.Log = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	logged.take()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(ctx, "orphan"); err != nil {
		t.Error(err)
	}
	if err := s.Remove(ctx, "plain:1"); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a removal from a closed store: %v", err)
	}
	s.background.Close() // what has begun would have ended
	if all := logged.take(); len(all) > 0 {
		t.Errorf("logged: %q", all)
	}
	s = open(t, s.cfg)
	if users := s.rootfs.Users(); len(users) != 1 {
		t.Errorf("layers in use: %v", users)
	}
}

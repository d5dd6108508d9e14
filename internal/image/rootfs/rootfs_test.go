package rootfs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysquota"
)

// managerOf returns a manager with a root filesystem "c1", whose directory is there.
func managerOf(t *testing.T) *Manager {
	t.Helper()
	dir := t.TempDir()
	m := New(Config{Paths: Paths{Root: dir, State: dir}, Discard: os.RemoveAll, Log: slog.New(slog.DiscardHandler)})
	if err := errors.Join(m.MakeDirs(), os.Mkdir(m.containerDir("c1"), 0o700)); err != nil {
		t.Fatal(err)
	}
	m.uses["c1"] = use{Chain: "sha256:1"}
	return m
}

// TestVolumeBeyondTheLimit: the copy of an image's files counts, also where the kernel does not hold berth to the limit.
func TestVolumeBeyondTheLimit(t *testing.T) {
	m := managerOf(t)
	spec := image.VolumeSpec{Key: "c1", UID: os.Getuid(), GID: os.Getgid()}
	for name, quota := range map[string]sysquota.Quota{
		"fits":      {Bytes: 10, Inodes: 5, Limit: 10, InodeLimit: 5},
		"unlimited": {Bytes: 10, Inodes: 5},
		"large":     {Bytes: 11, Inodes: 5, Limit: 10, InodeLimit: 5},
		"many":      {Bytes: 10, Inodes: 6, Limit: 10, InodeLimit: 5},
	} {
		m.counted = func(string) (sysquota.Quota, bool, error) { return quota, true, nil }
		spec.Name = name
		_, err := m.MakeVolume(t.Context(), spec)
		if exceeds := name == "large" || name == "many"; errors.Is(err, errs.Exhausted) != exceeds || !exceeds && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFailedRootfsLeavesNothing: what was made for a root filesystem that cannot be made is removed, not only at the next start.
func TestFailedRootfsLeavesNothing(t *testing.T) {
	m := managerOf(t)
	for what, prepare := range map[string]func() error{
		"a directory that is there": func() error {
			if err := os.WriteFile(filepath.Join(m.containerDir("c1"), "x"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := m.makeContainerDir(t.Context(), m.containerDir("c1"), use{}, image.RootfsSpec{})
			return err
		},
		"a limit that cannot hold": func() error {
			_, err := m.makeContainerDir(t.Context(), m.containerDir("c2"), use{}, image.RootfsSpec{Limit: 1 << 20})
			return err
		},
	} {
		if err := prepare(); err == nil {
			t.Errorf("%s: no error", what)
		}
		if left, err := os.ReadDir(m.PoolDir()); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %v, %v", what, left, err)
		}
	}
}

// TestCannotHoldOverlays: only a refusal says that a file system cannot hold overlays.
func TestCannotHoldOverlays(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EINVAL: true, unix.EPERM: true, unix.EOPNOTSUPP: true, unix.ENOSYS: true, unix.EXDEV: true, unix.ELOOP: true, errShown: true,
		unix.ENODEV: false, unix.EIO: false, unix.EROFS: false, unix.ESTALE: false, unix.ETIMEDOUT: false, unix.ENOENT: false, unix.EACCES: false, unix.EBUSY: false,
		unix.ENOSPC: false, unix.EDQUOT: false, unix.ENOMEM: false, unix.EMFILE: false, unix.ENFILE: false, unix.EINTR: false,
	} {
		got := cannot(&os.PathError{Op: "mount", Path: "/probe", Err: err}, "hold overlays")
		if !errors.Is(got, err) || errors.Is(got, errs.Unsupported) != want {
			t.Errorf("%v: %v, unsupported: want %v", err, got, want)
		}
	}
}

// TestFewCopiesAtATime: another one waits, and no longer than its request.
func TestFewCopiesAtATime(t *testing.T) {
	m := managerOf(t)
	for range maxCopies {
		m.copying <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.copyLayers(ctx, image.RootfsSpec{}, use{lower: []string{t.TempDir()}}, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("one more: %v", err)
	}
	<-m.copying
	m.layersDir = t.TempDir()
	if err := m.copyLayers(t.Context(), image.RootfsSpec{}, use{lower: []string{"."}}, t.TempDir()); err != nil || len(m.copying) != maxCopies-1 {
		t.Errorf("when one has ended: %v, %d are being made", err, len(m.copying))
	}
}

//go:build integration

package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysns"
)

const mappedRoot = 300000

// inUserNS runs fn with a user namespace whose root is mappedRoot, and with a store that has one
// image of some layers.
func inUserNS(t *testing.T, fn func(s *Images, img image.Image, m *image.UserMap)) {
	t.Helper()
	cfg := testConfig(t)
	if err := os.Chmod(filepath.Dir(filepath.Dir(cfg.State)), 0o711); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	spec := imagetest.Spec{Name: "app:1"}
	for i := range 5 {
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: "f" + strings.Repeat("x", i), Content: []byte("x")}})
	}
	spec.Layers = append(spec.Layers, imagetest.Layer{{Path: "suid", Mode: 0o4755, Content: []byte("x")}})
	list, err := s.Import(context.Background(), archiveOf(t, spec), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: mappedRoot, Size: 65536}}
	ns := sysns.UserNamespace{UIDs: ids, GIDs: ids, Program: require.Binary(t, "sleep"), Args: []string{"1000"}}
	err = sysns.WithUserNamespace(ns, func(path string) error {
		if err := s.CanMap(path); err != nil {
			return err
		}
		fn(s, list[0], &image.UserMap{UserNS: path, UID: mappedRoot, GID: mappedRoot})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(context.Background(), list[0].ID); err != nil {
		t.Fatal(err)
	}
	s.Close()
	assertEmpty(t, s)
}

func TestMappedRootfsBelongsToItsUserNamespace(t *testing.T) {
	ctx := context.Background()
	inUserNS(t, func(s *Images, img image.Image, m *image.UserMap) {
		rootfs := image.RootfsSpec{Key: "c", ImageID: img.ID, Map: m}
		mounted, err := s.Prepare(ctx, rootfs)
		if err != nil {
			t.Fatal(err)
		}
		wantOwner(t, mounted.Path, mappedRoot, 0o755)
		wantOwner(t, filepath.Join(mounted.Path, "f"), mappedRoot, 0o644)
		wantOwner(t, filepath.Join(mounted.Path, "suid"), mappedRoot, 0o4755)
		if fi, err := os.Stat(filepath.Dir(mounted.Path)); err != nil || fi.Mode().Perm() != 0o710 || fi.Sys().(*syscall.Stat_t).Gid != mappedRoot {
			t.Errorf("the directory above is open to others: %v, %v", fi.Mode(), err)
		}
		// Files that are copied up belong to the namespace on disk, too.
		if err := os.Chmod(filepath.Join(mounted.Path, "suid"), 0o711|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		onDisk := uint32(mappedRoot)
		if s.copies { // which has the numbers that the container sees
			onDisk = 0
		}
		wantOwner(t, filepath.Join(s.rootfs.ContainersDir(), "c", "upper", "suid"), onDisk, 0o4711)
		if again, err := s.Prepare(ctx, rootfs); err != nil || *again != *mounted {
			t.Errorf("again: %+v, %v", again, err)
		}
		if mounts := mountsBelow(t, s.rootfs.MappedDir()); len(mounts) != 1 {
			t.Errorf("mounts: %q", mounts)
		}
		if keys, err := s.Keys(ctx); err != nil || len(keys) != 1 || keys[0] != "c" {
			t.Errorf("keys %v, %v", keys, err)
		}
		if err := errors.Join(s.Release(ctx, "c"), s.Release(ctx, "c")); err != nil {
			t.Error(err)
		}
		if left := mountsBelow(t, s.rootfs.MappedDir()); len(left) != 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// A process that is killed during a mount leaves the layers mounted.
func TestMappedRootfsIsCreatedAfterAKill(t *testing.T) {
	ctx := context.Background()
	inUserNS(t, func(s *Images, img image.Image, m *image.UserMap) {
		layers := filepath.Join(s.rootfs.MappedDir(), "c", "layers")
		for _, dir := range []string{layers, filepath.Join(s.rootfs.MappedDir(), "c", "rootfs")} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := sysmount.BindMapped(s.db.LayersDir(), layers, m.UserNS); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: img.ID, Map: m}); err != nil {
			t.Fatal(err)
		}
		if mounts := mountsBelow(t, s.rootfs.MappedDir()); len(mounts) != 1 {
			t.Errorf("mounts: %q", mounts)
		}
		if err := s.Release(ctx, "c"); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(layers, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := sysmount.BindMapped(s.db.LayersDir(), layers, m.UserNS); err != nil {
			t.Fatal(err)
		}
		// The next start unmounts them.
		if err := s.rootfs.DropMounts(); err != nil {
			t.Error(err)
		}
		if left := mountsBelow(t, s.rootfs.MappedDir()); len(left) != 0 {
			t.Errorf("left: %q", left)
		}
	})
}

func TestMappedRootfsReportsTheObstacle(t *testing.T) {
	inUserNS(t, func(s *Images, img image.Image, m *image.UserMap) {
		above := filepath.Dir(s.cfg.State)
		if err := os.Chmod(above, 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := s.Prepare(context.Background(), image.RootfsSpec{Key: "c", ImageID: img.ID, Map: m})
		if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), above) {
			t.Errorf("a state directory out of reach: %v", err)
		}
		if err := s.CanMap(m.UserNS); !errors.Is(err, errs.Unsupported) {
			t.Errorf("CanMap: %v", err)
		}
		if err := os.Chmod(above, 0o711); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReadOnlyRootfsRefusesWrites(t *testing.T) {
	ctx := context.Background()
	s, img := imported(t)
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "s-volume", ImageID: img.ID, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(m.Path, "top")); err != nil || string(data) != "top" {
		t.Errorf("top is %q, %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(m.Path, "new"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write: %v", err)
	}
	if err := s.Remove(ctx, img.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(m.Path, "low")); err != nil {
		t.Errorf("a removed image's volume: %v", err)
	}
	if err := s.Release(ctx, "s-volume"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	assertEmpty(t, s)
}

func wantOwner(t *testing.T, path string, id uint32, mode uint32) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != id || st.Gid != id || st.Mode&0o7777 != mode {
		t.Errorf("%s belongs to %d:%d with mode %o, want %d and %o", path, st.Uid, st.Gid, st.Mode&0o7777, id, mode)
	}
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			found = append(found, fields[1])
		}
	}
	return found
}

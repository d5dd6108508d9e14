//go:build integration

package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// mountOn mounts an overlay of layers, the topmost first, on a new directory until the test ends.
func mountOn(t *testing.T, overlay sysmount.Overlay) string {
	t.Helper()
	target := t.TempDir()
	if err := sysmount.MountOverlay(overlay, target); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysmount.Detach(target); err != nil {
			t.Error(err)
		}
	})
	return target
}

// TestProbeOverlay: the probe distinguishes file systems that can hold overlays from those that cannot.
func TestProbeOverlay(t *testing.T) {
	require.Root(t)
	good := Paths{Root: t.TempDir()}
	if err := os.MkdirAll(good.PoolDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := good.ProbeOverlay(); err != nil {
		t.Errorf("a disk: %v", err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "u"), 0o700), os.Mkdir(filepath.Join(dir, "w"), 0o700)); err != nil {
		t.Fatal(err)
	}
	on := Paths{Root: mountOn(t, sysmount.Overlay{LowerRoot: good.Root, Lower: []string{"."}, Upper: filepath.Join(dir, "u"), Work: filepath.Join(dir, "w")})}
	if err := on.ProbeOverlay(); !errors.Is(err, errs.Unsupported) {
		t.Errorf("an overlay: %v", err)
	}
	if err := (Paths{Root: "/proc"}).ProbeOverlay(); err == nil || errors.Is(err, errs.Unsupported) {
		t.Errorf("a file system in which nothing can be made: %v", err)
	}
	for _, p := range []Paths{good, on} {
		if left, err := os.ReadDir(p.PoolDir()); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// randomLayer makes files, links, directories and deletions of a few names, in the form of overlays.
func randomLayer(r *rand.Rand, dir string, depth int) error {
	var errList []error
	add := func(err error) { errList = append(errList, err) }
	for _, name := range []string{"a", "b", "c", "d"} {
		at := filepath.Join(dir, name)
		switch kind := r.IntN(9); {
		case kind < 2: // not in the layer
		case kind == 2:
			add(unix.Mknod(at, unix.S_IFCHR, 0))
		case kind == 3:
			add(os.Symlink(fmt.Sprint(r.IntN(100)), at))
		case kind == 4:
			add(unix.Mknod(at, unix.S_IFCHR|0o640, int(unix.Mkdev(1, 3))))
		case kind < 7 && depth > 0:
			add(os.Mkdir(at, 0o700))
			if r.IntN(4) == 0 {
				add(unix.Setxattr(at, sysfile.OverlayOpaque, []byte("y"), 0))
			}
			add(randomLayer(r, at, depth-1))
		default:
			add(os.WriteFile(at, []byte(fmt.Sprint(r.IntN(1000))), 0o600))
			add(unix.Setxattr(at, "user.note", []byte("x"), 0))
		}
		if _, err := os.Lstat(at); err == nil {
			add(os.Lchown(at, r.IntN(5), r.IntN(5)))
		}
	}
	return errors.Join(errList...)
}

// toFiles makes a layer say by files what it deletes.
func toFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if entry.IsDir() {
			if unix.Removexattr(path, sysfile.OverlayOpaque) != nil {
				return nil
			}
			return errors.Join(os.WriteFile(filepath.Join(path, sysfile.OpaqueName), nil, 0o600), restore(path, st))
		}
		if entry.Type()&fs.ModeCharDevice == 0 || st.Rdev != 0 {
			return nil
		}
		name := filepath.Join(filepath.Dir(path), sysfile.WhiteoutPrefix+entry.Name())
		var above unix.Stat_t
		err = unix.Lstat(filepath.Dir(path), &above)
		return errors.Join(err, os.Remove(path), os.WriteFile(name, nil, 0o600), restore(filepath.Dir(path), above))
	})
}

// restore gives a directory the times that it had.
func restore(path string, st unix.Stat_t) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// shown lists a tree, but for the attributes of its root.
func shown(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); errors.Is(err, unix.ENOENT) {
			return nil // the kernel lists deletions of a directory that one layer alone has
		} else if err != nil {
			return err
		}
		text, _ := os.Readlink(path)
		if entry.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			note := make([]byte, 8)
			n, _ := unix.Lgetxattr(path, "user.note", note)
			text = string(data) + " " + string(note[:max(n, 0)])
		}
		fmt.Fprintf(&b, "%s %o %d:%d %x %d.%09d %s\n", strings.TrimPrefix(path, root), st.Mode, st.Uid, st.Gid, st.Rdev, st.Mtim.Sec, st.Mtim.Nsec, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestCopyIsWhatAnOverlayShows: for random layers, in both forms of deletions.
func TestCopyIsWhatAnOverlayShows(t *testing.T) {
	require.Root(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		overlay := sysmount.Overlay{LowerRoot: t.TempDir()}
		var layers []string
		for i := range 2 + r.IntN(4) {
			name := fmt.Sprint(i)
			layers, overlay.Lower = append(layers, filepath.Join(overlay.LowerRoot, name)), append(overlay.Lower, name)
			if err := errors.Join(os.Mkdir(layers[i], 0o755), randomLayer(r, layers[i], 3)); err != nil {
				t.Fatal(err)
			}
		}
		want := shown(t, mountOn(t, overlay))
		for _, form := range []string{"overlays", "files"} {
			to := t.TempDir()
			if err := sysfile.CopyLayers(t.Context(), layers, to, sysfile.LayersCopy{}); err != nil {
				t.Fatal(err)
			}
			if got := shown(t, to); got != want {
				t.Fatalf("deletions in the form of %s: the copy is\n%swant\n%s", form, got, want)
			}
			for _, layer := range layers[:1+r.IntN(len(layers))] { // a store may have both
				if err := toFiles(layer); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestCopyIsLabelled: all files of a copy have its label, and its root.
func TestCopyIsLabelled(t *testing.T) {
	require.Root(t)
	layer, to := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(layer, "d"), 0o755), os.Symlink("x", filepath.Join(layer, "d/l"))); err != nil {
		t.Fatal(err)
	}
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	if err := sysfile.CopyLayers(t.Context(), []string{layer}, to, sysfile.LayersCopy{Label: label}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".", "d", "d/l"} {
		value := make([]byte, 256)
		n, err := unix.Lgetxattr(filepath.Join(to, name), "security.selinux", value)
		if got := strings.TrimRight(string(value[:max(n, 0)]), "\x00"); err != nil || got != label {
			t.Errorf("%s has the label %q, %v", name, got, err)
		}
	}
}

//go:build integration

package erofs

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Config{
		Paths: Paths{Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state")}, Discard: os.RemoveAll, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() {
		entries, err := readDir(s.State)
		must(t, err)
		for _, id := range entries {
			_ = unix.Unmount(s.mountOf(id), unix.MNT_DETACH)
		}
	})
	return s
}

// fill makes a layer with one file.
func fill(t *testing.T, s *Store, chain, parent string) {
	t.Helper()
	mounts, err := s.Prepare(t.Context(), "extract/"+chain, parent)
	must(t, err)
	files := mounts[0].Source
	for _, option := range mounts[0].Options {
		if upper, ok := strings.CutPrefix(option, "upperdir="); ok {
			files = upper
		}
	}
	must(t, os.WriteFile(filepath.Join(files, chain), []byte(chain), 0o600))
	must(t, s.Commit(t.Context(), chain, "extract/"+chain))
}

// TestMountByALoopDevice: a kernel that mounts no image from its file has a loop device, which goes with the mount.
func TestMountByALoopDevice(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s, "a", "")
	path, target := ImageFile(s.layerDir("1")), t.TempDir()
	must(t, mountLoop(path, target))
	mounted := true
	t.Cleanup(func() {
		if mounted {
			must(t, unix.Unmount(target, 0))
		}
	})
	if data, err := os.ReadFile(filepath.Join(target, "a")); err != nil || string(data) != "a" {
		t.Errorf("the file has %q, %v", data, err)
	}
	if got := loopsOf(t, path); len(got) != 1 {
		t.Errorf("the image has the loop devices %q", got)
	}
	must(t, unix.Unmount(target, 0))
	mounted = false
	if got := loopsOf(t, path); len(got) != 0 {
		t.Errorf("the image still has the loop devices %q", got)
	}
}

// loopsOf lists the loop devices of a file.
func loopsOf(t *testing.T, path string) (all []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(t, err)
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(data)) == path {
			all = append(all, file)
		}
	}
	return all
}

// TestFSVerity: where the file system has fs-verity, the kernel lets nobody write to the file of a layer, and a store knows the
// file by the kernel's digest.
func TestFSVerity(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	require.FSVerity(t)
	dir := verityDisk(t)
	s := open(t, dir)
	fill(t, s, "a", "")
	fill(t, s, "b", "a")
	path := ImageFile(s.layerDir("1"))
	if !s.layers["a"].Verity {
		t.Fatal("the file of a layer has no fs-verity")
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); !errors.Is(err, unix.EPERM) {
		t.Errorf("a write to the file of a layer: %v", err)
	}
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	if got, err := verityDigest(t.Context(), file, s.layers["a"].Size); err != nil || got != s.layers["a"].Digest {
		t.Errorf("the computed digest is %s, %v, that of the kernel %s", got, err, s.layers["a"].Digest)
	}
	ids, err := s.Use(t.Context(), "c", "b")
	if err != nil || len(ids) != 2 {
		t.Fatal(ids, err)
	}
	s.Drop("c")
	must(t, s.Sweep()) // else the layers stay mounted, with the content that they have
	// The same length and time, with fs-verity of its own.
	data, err := os.ReadFile(path)
	must(t, err)
	st, err := statImage(path)
	must(t, err)
	data[len(data)-1]++
	must(t, errors.Join(os.Remove(path), os.WriteFile(path, data, 0o600)))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{}, unix.NsecToTimespec(st.modified)}, 0))
	other, err := os.Open(path)
	must(t, err)
	must(t, errors.Join(enableVerity(other), other.Close()))
	if _, err := s.Use(t.Context(), "c", "b"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "pull the image again") {
		t.Errorf("a layer with another file: %v", err)
	}
	for _, chain := range []string{"a", "b"} {
		if _, err := s.Stat(t.Context(), chain); !errdefs.IsNotFound(err) {
			t.Errorf("the layer %s is there: %v", chain, err)
		}
	}
}

// verityDisk mounts an ext4 with fs-verity.
func verityDisk(t *testing.T) string {
	t.Helper()
	dir, target := t.TempDir(), t.TempDir()
	disk := filepath.Join(dir, "disk")
	f, err := os.Create(disk)
	must(t, err)
	must(t, errors.Join(f.Truncate(64<<20), f.Close()))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-b", "4096", "-O", "verity", disk}, {"mount", "-o", "loop", disk, target}} {
		if out, err := exec.CommandContext(t.Context(), require.Binary(t, args[0]), args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		must(t, unix.Unmount(target, 0))
	})
	return target
}

// TestUsesOfLayers: layers are mounted once for all that use them, and stay until they are removed. What is below another one, or in use,
// is not removed.
func TestUsesOfLayers(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	s := open(t, t.TempDir())
	fill(t, s, "a", "")
	fill(t, s, "b", "a")
	mounted := func(want int) {
		t.Helper()
		if entries, err := readDir(s.State); err != nil || len(entries) != want {
			t.Errorf("mounted are %q, %v, want %d", entries, err, want)
		}
	}
	mounted(0)
	for _, key := range []string{"one", "two", "one"} {
		ids, err := s.Use(t.Context(), key, "b")
		if err != nil || strings.Join(ids, " ") != "2 1" {
			t.Fatalf("layers %q, %v", ids, err)
		}
		mounted(2)
	}
	for _, chain := range []string{"a", "b"} {
		if err := s.Remove(t.Context(), chain); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a removal of %s in use: %v", chain, err)
		}
	}
	s.Drop("one")
	mounted(2)
	s.Drop("two")
	s.Drop("two")
	mounted(2) // for the next one
	if err := s.Remove(t.Context(), "a"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a removal of a layer below another one: %v", err)
	}
	must(t, s.Remove(t.Context(), "b"))
	mounted(1)
	must(t, s.Close())
	mounted(0)
	must(t, s.Remove(t.Context(), "a"))
	if _, err := s.Use(t.Context(), "one", "b"); !errdefs.IsNotFound(err) {
		t.Errorf("a removed layer: %v", err)
	}
	fill(t, s, "c", "")
	if id := s.layers["c"].id; id != "3" {
		t.Errorf("a new layer has the number %s of one that was there", id)
	}
}

// TestAFailedMountKeepsTheUse: a root filesystem that a record names keeps its layers, also if they cannot be mounted at the moment.
func TestAFailedMountKeepsTheUse(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	dir := t.TempDir()
	fill(t, open(t, dir), "a", "")
	s := open(t, dir) // after a reboot
	must(t, s.Restore("c", "a"))
	must(t, errors.Join(os.RemoveAll(s.State), os.WriteFile(s.State, nil, 0o600)))
	for _, key := range []string{"c", "new"} {
		if _, err := s.Use(t.Context(), key, "a"); err == nil || errdefs.IsNotFound(err) {
			t.Fatalf("a use without a directory for mounts: %v", err)
		}
	}
	must(t, os.Remove(s.State))
	if err := s.Remove(t.Context(), "a"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a removal of a layer in use: %v", err)
	}
	s.Drop("c")
	must(t, s.Remove(t.Context(), "a"))
}

// TestAUseOfALostLayerEnds: a root filesystem has the layer that was pulled again, in the place of the one that was changed.
func TestAUseOfALostLayerEnds(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	s := open(t, t.TempDir())
	fill(t, s, "a", "")
	must(t, s.Restore("c", "a"))
	must(t, os.Truncate(ImageFile(s.layerDir("1")), 5))
	if _, err := s.Use(t.Context(), "c", "a"); !errdefs.IsNotFound(err) {
		t.Errorf("a changed layer: %v", err)
	}
	fill(t, s, "a", "")
	if ids, err := s.Use(t.Context(), "c", "a"); err != nil || strings.Join(ids, " ") != "2" {
		t.Errorf("after a pull: %q, %v", ids, err)
	}
}

// TestALayerOverALostOne: a layer whose parent was dropped while it was unpacked would never be complete.
func TestALayerOverALostOne(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	s := open(t, t.TempDir())
	fill(t, s, "a", "")
	if _, err := s.Prepare(t.Context(), "extract/b", "a"); err != nil {
		t.Fatal(err)
	}
	s.Forget("a")
	if err := s.Commit(t.Context(), "b", "extract/b"); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a layer over a lost one: %v", err)
	}
	must(t, s.Remove(t.Context(), "extract/b"))
	for _, dir := range []string{s.LayersDir(), s.newDir(), s.State} {
		if left, err := readDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %q, %v", dir, left, err)
		}
	}
}

// TestCheckOfARemovedLayer: a layer that is removed while it is checked is not damaged.
func TestCheckOfARemovedLayer(t *testing.T) {
	require.Root(t)
	s := open(t, t.TempDir())
	fill(t, s, "a", "")
	l := s.layers["a"]
	must(t, s.Remove(t.Context(), "a"))
	if problem, err := s.problemOf(t.Context(), l); problem != "" || err != nil {
		t.Errorf("the problem %q, %v", problem, err)
	}
}

// TestLayersAreCachedOnce: what is read of a layer is not in the cache of its file, too.
func TestLayersAreCachedOnce(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	s := open(t, t.TempDir())
	mounts, err := s.Prepare(t.Context(), "extract/a", "")
	must(t, err)
	const size = 32 << 20
	must(t, os.WriteFile(filepath.Join(mounts[0].Source, "large"), make([]byte, size), 0o600))
	must(t, s.Commit(t.Context(), "a", "extract/a"))
	path := ImageFile(s.layerDir("1"))
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	must(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
	before := cached(t, file, size)
	if _, err := s.Use(t.Context(), "c", "a"); err != nil {
		t.Fatal(err)
	}
	defer s.Drop("c")
	mounted, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounted)) {
		if strings.Contains(line, s.mountOf("1")+" ") && !strings.HasPrefix(line, "/dev/loop") && !strings.Contains(line, directIO) {
			t.Logf("the kernel knows no %s: %s", directIO, line)
			return
		}
	}
	if _, err := os.ReadFile(filepath.Join(s.mountOf("1"), "large")); err != nil {
		t.Fatal(err)
	}
	if now := cached(t, file, size); now > before+size/8 {
		t.Errorf("of the file %d bytes are in the cache, and were %d", now, before)
	}
}

// cached returns how many of the first bytes of a file are in the page cache.
func cached(t *testing.T, file *os.File, size int) (bytes int) {
	t.Helper()
	data, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(data)) }()
	pages := make([]byte, size/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&data[0])), uintptr(size), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, page := range pages {
		bytes += int(page&1) * os.Getpagesize()
	}
	return bytes
}

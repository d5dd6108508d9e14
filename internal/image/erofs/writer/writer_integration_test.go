//go:build integration

package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// image writes the image of a directory.
func image(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	must(t, Write(t.Context(), f, dir))
	return path
}

// mounted mounts an image.
func mounted(t *testing.T, path string) string {
	t.Helper()
	target := t.TempDir()
	must(t, unix.Mount(path, target, "erofs", unix.MS_RDONLY, ""))
	t.Cleanup(func() { must(t, unix.Unmount(target, 0)) })
	return target
}

// compare reports the differences between a tree and its image.
func compare(t *testing.T, dir string) {
	t.Helper()
	want, err := imagetest.Observe(dir)
	must(t, err)
	got, err := imagetest.Observe(mounted(t, image(t, dir)))
	must(t, err)
	if difference := imagetest.Difference(got, want); difference != "" {
		t.Fatal(difference)
	}
}

// TestKernelSeesTheSameTree: the kernel shows of an image what the directory has.
func TestKernelSeesTheSameTree(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, size := range []int64{0, 1, 100, 4095, 4096, 4097, smallFile - 1, smallFile, smallFile + 1, 3 << 20} {
		must(t, os.WriteFile(at(fmt.Sprintf("file-%d", size)), bytes.Repeat([]byte("0123456"), int(size/7)+1)[:size], 0o640))
	}
	// Lengths around the end of a block, so that each place of a link and of a short directory is there.
	for _, size := range []int{1, 59, 1000, 3000, 4030, 4031, 4032, 4033, 4095} {
		must(t, os.Symlink(strings.Repeat("x", size), at(fmt.Sprintf("link-%d", size))))
	}
	for _, count := range []int{0, 1, 50, 120, 200, 1200} {
		must(t, os.Mkdir(at(fmt.Sprintf("dir-%d", count)), 0o751))
		for i := range count {
			must(t, os.WriteFile(at(fmt.Sprintf("dir-%d/%s%d", count, strings.Repeat("n", i%200), i)), nil, 0o600))
		}
	}
	must(t, os.WriteFile(at("!before-dot"), nil, 0o600))
	must(t, os.WriteFile(at("\xff\xfe"), nil, 0o600))
	sparse, err := os.Create(at("sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("middle"), 5<<20)
	must(t, err)
	must(t, sparse.Truncate(9<<20+5))
	must(t, sparse.Close())
	must(t, os.Link(at("file-100"), at("dir-1/hard")))
	must(t, os.Link(at("link-59"), at("hard-link-to-link")))
	must(t, unix.Mknod(at("whiteout"), unix.S_IFCHR, 0))
	must(t, unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(at("disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(259, 70000))))
	must(t, unix.Mkfifo(at("fifo"), 0o644))
	must(t, unix.Mknod(at("socket"), unix.S_IFSOCK|0o600, 0))
	must(t, unix.Setxattr(at("dir-50"), "trusted.overlay.opaque", []byte("y"), 0))
	must(t, unix.Setxattr(at("file-4096"), "user.empty", nil, 0))
	must(t, unix.Setxattr(at("file-4096"), "user.large", bytes.Repeat([]byte("v"), 3000), 0))
	must(t, unix.Setxattr(at("file-1"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	acl := []byte("\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x05\x00\x64\x00\x00\x00\x04\x00\x05\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x05\x00\xff\xff\xff\xff")
	must(t, unix.Setxattr(at("dir-120"), "system.posix_acl_default", acl, 0))
	must(t, unix.Setxattr(at("file-4095"), "system.posix_acl_access", acl, 0))
	must(t, os.Chown(at("file-4097"), 1<<31+5, 70000))
	must(t, unix.Chmod(at("file-4097"), 0o6755))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at("file-4097"), []unix.Timespec{{}, {Sec: 1 << 33, Nsec: 999999999}}, 0))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at("link-1"), []unix.Timespec{{}, {Sec: -5, Nsec: 7}}, unix.AT_SYMLINK_NOFOLLOW))
	compare(t, dir)
}

// TestEmptyDirectory: the layer of an image may have no file.
func TestEmptyDirectory(t *testing.T) {
	require.Root(t)
	require.EROFS(t)
	compare(t, t.TempDir())
}

// TestSameDirectorySameImage: nothing of the host is in an image.
func TestSameDirectorySameImage(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o600))
	must(t, os.Symlink("f", filepath.Join(dir, "link")))
	one, err := os.ReadFile(image(t, dir))
	must(t, err)
	two, err := os.ReadFile(image(t, dir))
	must(t, err)
	if !bytes.Equal(one, two) {
		t.Error("two images of one directory differ")
	}
}

// TestFsckFindsNothing: the checker of erofs-utils agrees with the kernel.
func TestFsckFindsNothing(t *testing.T) {
	fsck := require.Binary(t, "fsck.erofs")
	dir := t.TempDir()
	for i := range 300 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%d", i)), bytes.Repeat([]byte("x"), i*50), 0o600))
	}
	must(t, os.Symlink("file-1", filepath.Join(dir, "link")))
	must(t, unix.Setxattr(filepath.Join(dir, "file-7"), "user.a", []byte("b"), 0))
	if out, err := exec.CommandContext(t.Context(), fsck, image(t, dir)).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v: %s", err, out)
	}
}

// TestBadTrees: what an image cannot have is refused, and a cancelled context ends the work.
func TestBadTrees(t *testing.T) {
	dir := t.TempDir()
	deep := dir
	for range 30 { // a path of Mkdir has at most 4096 bytes
		deep = filepath.Join(deep, "d")
	}
	must(t, os.MkdirAll(deep, 0o700))
	write := func(ctx context.Context) error {
		f, err := os.Create(filepath.Join(t.TempDir(), "image"))
		must(t, err)
		defer f.Close()
		return Write(ctx, f, dir)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if err := write(ctx); !errors.Is(err, gone) {
		t.Errorf("with a context that has ended: %v", err)
	}
	at, err := os.Open(dir)
	must(t, err)
	defer func() { must(t, at.Close()) }()
	must(t, at.Chdir())
	for range maxDepth + 1 {
		must(t, os.Mkdir("d2", 0o700))
		must(t, os.Chdir("d2"))
	}
	must(t, at.Chdir())
	if err := write(t.Context()); !errors.Is(err, errs.Invalid) {
		t.Errorf("a tree of %d directories in one another: %v", maxDepth+1, err)
	}
	must(t, os.Chdir("/"))
}

// TestMemoryOfATreeIsBounded: the attributes of an image's files have almost no bytes where they are compressed, and gigabytes in
// memory.
func TestMemoryOfATreeIsBounded(t *testing.T) {
	const limit = 16 << 10
	bounded := func(t *testing.T, dir string) error {
		t.Helper()
		f, err := os.Create(filepath.Join(t.TempDir(), "image"))
		must(t, err)
		defer f.Close()
		return write(t.Context(), f, dir, limit)
	}
	for name, file := range map[string]func(path string) error{
		"names": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"links": func(path string) error { return os.Symlink(string(bytes.Repeat([]byte("l"), 1000)), path) },
		"values": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), unix.Setxattr(path, "user.a", bytes.Repeat([]byte("v"), 1000), 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, count := t.TempDir(), 0
			more := func(n int) {
				for range n {
					must(t, file(filepath.Join(dir, fmt.Sprintf("f%d", count))))
					count++
				}
			}
			more(10)
			if err := bounded(t, dir); err != nil {
				t.Errorf("%d files: %v", count, err)
			}
			more(limit / 100)
			if err := bounded(t, dir); !errors.Is(err, errs.Invalid) {
				t.Errorf("%d files: %v", count, err)
			}
		})
	}
}

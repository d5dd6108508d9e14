//go:build integration

package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// stat is what lstat returns of a file of the upper directory.
func (b *bench) stat(name string) (st unix.Stat_t) {
	b.t.Helper()
	if err := unix.Lstat(b.path("upper", name), &st); err != nil {
		b.t.Errorf("%s: %v", name, err)
	}
	return st
}

// headers makes an archive of headers without content.
func headers(t *testing.T, all ...*tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, header := range all {
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestTheRootDirectoryHasTheAttributesOfItsEntry, or those that it has below.
func TestTheRootDirectoryHasTheAttributesOfItsEntry(t *testing.T) {
	b := newBench(t)
	result, err := b.run(headers(t, &tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o1711, Uid: 3, Gid: 4, ModTime: time.Unix(7, 0)}, &tar.Header{Typeflag: tar.TypeReg, Name: "./f"}))
	if st := b.stat("."); err != nil || !result.Root || st.Mode&0o7777 != 0o1711 || st.Uid != 3 || st.Gid != 4 || st.Mtim.Sec != 7 {
		t.Errorf("%+v, %v: %o %d:%d at %d", result, err, st.Mode, st.Uid, st.Gid, st.Mtim.Sec)
	}
	b = newBench(t)
	if err := errors.Join(os.Chown(b.path("lower"), 5, 6), unix.Chmod(b.path("lower"), 0o711)); err != nil {
		t.Fatal(err)
	}
	result, err = b.run(b.tar(imagetest.Layer{{Path: "f"}}), "lower")
	if st := b.stat("."); err != nil || result.Root || st.Mode&0o7777 != 0o711 || st.Uid != 5 || st.Gid != 6 {
		t.Errorf("inherited: %+v, %v: %o %d:%d", result, err, st.Mode, st.Uid, st.Gid)
	}
}

// TestTimesAreExact: before 1970, after 2262, and those of directories that a layer only writes into.
func TestTimesAreExact(t *testing.T) {
	b := newBench(t)
	low := b.path("lower/d")
	if err := errors.Join(os.Mkdir(low, 0o755), os.Chtimes(low, time.Unix(9, 0), time.Unix(9, 0))); err != nil {
		t.Fatal(err)
	}
	data := headers(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "old", ModTime: time.Unix(-2, 500), Format: tar.FormatPAX},
		&tar.Header{Typeflag: tar.TypeReg, Name: "new", ModTime: time.Unix(13_000_000_000, 0), Format: tar.FormatPAX},
		&tar.Header{Typeflag: tar.TypeReg, Name: "d/f"})
	if _, err := b.run(data, "lower"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]unix.Timespec{"old": {Sec: -2, Nsec: 500}, "new": {Sec: 13_000_000_000}, "d": {Sec: 9}} {
		if got := b.stat(name).Mtim; got != want {
			t.Errorf("%s has the time %v, want %v", name, got, want)
		}
	}
}

// TestNamesLeadThroughLinksBelow: a name is that of the whole image, not of the layer.
func TestNamesLeadThroughLinksBelow(t *testing.T) {
	b := newBench(t)
	err := errors.Join(os.MkdirAll(b.path("lower/real"), 0o711), os.Symlink("/real", b.path("lower/link")), os.Symlink("link", b.path("lower/again")),
		os.Symlink("loop", b.path("lower/loop")), os.WriteFile(b.path("lower/real/gone"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	gone := imagetest.Whiteout("link/gone")
	gone.Raw = true
	if _, err := b.run(b.tar(imagetest.Layer{{Path: "again/f", Raw: true}, gone}), "lower"); err != nil {
		t.Fatal(err)
	}
	if st := b.stat("real"); st.Mode&0o7777 != 0o711 {
		t.Errorf("the directory has mode %o", st.Mode)
	}
	if st := b.stat("real/gone"); st.Mode&unix.S_IFMT != unix.S_IFCHR {
		t.Errorf("the deletion has mode %o", st.Mode)
	}
	b.stat("real/f")
	for _, name := range []string{"link", "again"} {
		if _, err := os.Lstat(b.path("upper", name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the layer hides the link %s: %v", name, err)
		}
	}
	if _, err := b.run(b.tar(imagetest.Layer{{Path: "loop/f", Raw: true}}), "lower"); !errors.Is(err, errs.Invalid) {
		t.Errorf("a link to itself: %v", err)
	}
}

// TestHardLinksToLayersBelow makes the file one of the layer.
func TestHardLinksToLayersBelow(t *testing.T) {
	b := newBench(t)
	err := errors.Join(os.MkdirAll(b.path("lower/d"), 0o711), os.WriteFile(b.path("lower/d/f"), []byte("below"), 0o600), os.Chown(b.path("lower/d/f"), 3, 4),
		unix.Chmod(b.path("lower/d/f"), 0o4711), unix.Setxattr(b.path("lower/d/f"), "user.k", []byte("v"), 0))
	if err != nil {
		t.Fatal(err)
	}
	layer := b.tar(imagetest.Layer{{Path: "new", Hardlink: "d/f"}})
	if _, err := b.run(layer, "lower"); err != nil {
		t.Fatal(err)
	}
	st, value := b.stat("d/f"), make([]byte, 8)
	n, err := unix.Getxattr(b.path("upper/new"), "user.k", value)
	data, readErr := os.ReadFile(b.path("upper/new"))
	if st.Ino != b.stat("new").Ino || st.Mode&0o7777 != 0o4711 || st.Uid != 3 || st.Gid != 4 || err != nil || string(value[:n]) != "v" || string(data) != "below" {
		t.Errorf("%+v, %v, %q, %v", st, err, data, readErr)
	}
	if result, err := newBench(t).runJob(layer, Job{WhiteoutFiles: true, Lower: []string{"lower"}}); err != nil || !result.NeedsFiles {
		t.Errorf("without the files below: %+v, %v", result, err)
	}
	if _, err := newBench(t).run(layer, "lower"); !errors.Is(err, errs.Invalid) {
		t.Errorf("to a file that is nowhere: %v", err)
	}
}

// TestDeletionsOfNothingLeaveNoFile: the kernel lists a deletion where the directory is in one layer alone, and no call finds it.
func TestDeletionsOfNothingLeaveNoFile(t *testing.T) {
	for name, layer := range map[string]imagetest.Layer{
		"of what is nowhere":   {{Path: "d/f"}, imagetest.Whiteout("d/gone")},
		"in no directory":      {{Path: "d/f"}, {Path: "none/.wh.x", Raw: true}, {Path: "none/.wh..wh..opq", Raw: true}},
		"in a file":            {{Path: "d/f"}, {Path: "d/f/.wh.x", Raw: true}},
		"in an opaque one":     {{Path: "d/f"}, imagetest.Whiteout("d/low"), {Path: "d/sub/.wh.x", Raw: true}, imagetest.Opaque("d")},
		"and of its directory": {{Path: "d/f"}, {Path: "e/.wh.x", Raw: true}, imagetest.Whiteout("e")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, file := range []string{"d/low", "d/sub/x", "e/x"} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(b.path("lower", file)), 0o755), os.WriteFile(b.path("lower", file), nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := b.run(b.tar(layer), "lower"); err != nil {
				t.Fatal(err)
			}
			if entries, err := os.ReadDir(b.path("upper/d")); err != nil || len(entries) != 1 {
				t.Errorf("the directory has %v, %v", entries, err)
			}
			if _, err := os.Lstat(b.path("upper/none")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a deletion has made a directory: %v", err)
			}
			if name == "and of its directory" && b.stat("e").Mode&unix.S_IFMT != unix.S_IFCHR {
				t.Error("the directory is not deleted")
			}
		})
	}
}

// TestSparseFilesHaveHoles, also in the old form of GNU tar.
func TestSparseFilesHaveHoles(t *testing.T) {
	b := newBench(t)
	const size = 1 << 29
	// The map of an old header: 512 bytes at the start, and the end of the file.
	old := &tar.Header{Typeflag: tar.TypeGNUSparse, Name: "old", Mode: 0o640, Size: 512, ModTime: time.Unix(1, 0), Format: tar.FormatGNU}
	data := headers(t, &tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755})
	data = append(oldSparse(t, old, size, strings.Repeat("x", 512)), data...)
	if _, err := b.run(data); err != nil {
		t.Fatal(err)
	}
	if st := b.stat("old"); st.Size != size || st.Blocks*512 > 1<<20 || st.Mode&0o7777 != 0o640 {
		t.Errorf("%d bytes of %d on disk, mode %o", st.Blocks*512, st.Size, st.Mode)
	}
	b.stat("d")
}

// oldSparse makes the entry of a sparse file in the old form of GNU tar: content at the start, and a hole up to size.
func oldSparse(t *testing.T, header *tar.Header, size int, content string) []byte {
	t.Helper()
	plain := *header
	plain.Typeflag = tar.TypeReg
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := w.WriteHeader(&plain)
	if _, writeErr := w.Write([]byte(content)); errors.Join(err, writeErr, w.Flush()) != nil {
		t.Fatal(err, writeErr)
	}
	block := buf.Bytes()
	block[156] = tar.TypeGNUSparse
	octal := func(at, value int) { copy(block[at:at+12], []byte(padded(value))) }
	octal(386, 0)
	octal(398, len(content))
	octal(410, size)
	octal(422, 0)
	octal(483, size)
	sum := 0
	copy(block[148:156], "        ")
	for _, b := range block[:512] {
		sum += int(b)
	}
	copy(block[148:156], padded(sum)[5:11]+"\x00 ")
	return block
}

// padded is a number as tar has it in twelve bytes.
func padded(value int) string {
	digits := []byte("00000000000\x00")
	for i := 10; value > 0; i-- {
		digits[i] = byte('0' + value%8)
		value /= 8
	}
	return string(digits)
}

// TestADirectoryThatALayerReplaces between entries in it is looked up again.
func TestADirectoryThatALayerReplaces(t *testing.T) {
	for name, c := range map[string]struct {
		layer imagetest.Layer
		want  map[string]bool // files that are there, and that are not
	}{
		"by a link": {
			imagetest.Layer{{Path: "real", Dir: true}, {Path: "d", Dir: true}, {Path: "d/f"}, {Path: "d", Symlink: "real", Raw: true}, {Path: "d/g", Raw: true}},
			map[string]bool{"real/g": true, "real/f": false},
		},
		"the parent by a link": {
			imagetest.Layer{{Path: "real/d", Dir: true}, {Path: "p/d", Dir: true}, {Path: "p/d/f"}, {Path: "p", Symlink: "real", Raw: true}, {Path: "p/d/g", Raw: true}},
			map[string]bool{"real/d/g": true, "real/d/f": false},
		},
		"a link to it by a directory": {
			imagetest.Layer{{Path: "real", Dir: true}, {Path: "d", Symlink: "real"}, {Path: "d/f", Raw: true}, {Path: "d", Dir: true, Raw: true}, {Path: "d/g", Raw: true}},
			map[string]bool{"real/f": true, "real/g": false, "d/g": true, "d/f": false},
		},
		"a link to it by a link in it": {
			imagetest.Layer{
				{Path: "real", Dir: true},
				{Path: "other", Dir: true},
				{Path: "real/up", Symlink: "../real"},
				{Path: "d", Symlink: "real/up"},
				{Path: "d/f", Raw: true},
				{Path: "d/up", Symlink: "../other", Raw: true},
				{Path: "d/g", Raw: true},
			},
			map[string]bool{"real/f": true, "real/g": false, "other/g": true},
		},
		"a file by its directory": {
			imagetest.Layer{{Path: "d", Dir: true}, {Path: "d/f"}, {Path: "d/f", Dir: true, Raw: true}, {Path: "d/f/g", Raw: true}, {Path: "d/f/h", Raw: true}},
			map[string]bool{"d/f/g": true, "d/f/h": true},
		},
		"a directory by a file": {
			imagetest.Layer{{Path: "d/f", Dir: true}, {Path: "d/f/g"}, {Path: "d/f", Content: []byte("x"), Raw: true}, {Path: "d/h"}},
			map[string]bool{"d/f": true, "d/f/g": false, "d/h": true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if _, err := b.run(b.tar(c.layer)); err != nil {
				t.Fatal(err)
			}
			for file, there := range c.want {
				if _, err := os.Stat(b.path("upper", file)); (err == nil) != there {
					t.Errorf("%s: %v, want there: %t", file, err, there)
				}
			}
		})
	}
}

// TestFilesInheritNothingOfASetgidDirectory: the kernel gives new files in it its group, and new directories its mode, too.
func TestFilesInheritNothingOfASetgidDirectory(t *testing.T) {
	b := newBench(t)
	_, err := b.run(headers(t,
		&tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o2777, Gid: 5},
		&tar.Header{Typeflag: tar.TypeReg, Name: "d/plain", Mode: 0o644},
		&tar.Header{Typeflag: tar.TypeReg, Name: "d/setgid", Mode: 0o2755, Gid: 5},
		&tar.Header{Typeflag: tar.TypeReg, Name: "d/setuid", Mode: 0o4755, Uid: 6},
		&tar.Header{Typeflag: tar.TypeFifo, Name: "d/fifo", Mode: 0o6644, Uid: 7},
		&tar.Header{Typeflag: tar.TypeDir, Name: "d/dir", Mode: 0o755}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][3]uint32{
		"d/plain": {0o644}, "d/setgid": {0o2755, 0, 5}, "d/setuid": {0o4755, 6}, "d/fifo": {0o6644, 7}, "d/dir": {0o755},
	} {
		if st := b.stat(name); [3]uint32{st.Mode & 0o7777, st.Uid, st.Gid} != want {
			t.Errorf("%s has mode %o and owner %d:%d, want %o", name, st.Mode, st.Uid, st.Gid, want)
		}
	}
}

// TestDeviceNumbersBeyondLinuxAreRefused: the kernel takes 4096:0 for 0:0, a deletion.
func TestDeviceNumbersBeyondLinuxAreRefused(t *testing.T) {
	for _, number := range [][2]int64{{4096, 0}, {1, 1 << 20}} {
		b := newBench(t)
		_, err := b.run(headers(t, &tar.Header{Typeflag: tar.TypeChar, Name: "dev", Devmajor: number[0], Devminor: number[1], Format: tar.FormatGNU}))
		if !errors.Is(err, errs.Invalid) {
			t.Errorf("%d:%d: %v", number[0], number[1], err)
		}
	}
}

// TestFilesInheritNoACL: the ACL that a directory gives to new files is for those of the container.
func TestFilesInheritNoACL(t *testing.T) {
	const acl = "\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x07\x00\xe8\x03\x00\x00" +
		"\x04\x00\x05\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x05\x00\xff\xff\xff\xff"
	b := newBench(t)
	_, err := b.run(b.tar(imagetest.Layer{{Path: "d", Dir: true, Xattrs: map[string]string{"system.posix_acl_default": acl}}, {Path: "d/f"}, {Path: "d/e", Dir: true}}))
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 256)
	if n, err := unix.Getxattr(b.path("upper/d"), "system.posix_acl_default", buffer); err != nil || string(buffer[:n]) != acl {
		t.Errorf("the directory's ACL: %q, %v", buffer[:max(n, 0)], err)
	}
	for _, name := range []string{"d/f", "d/e"} {
		if n, err := unix.Llistxattr(b.path("upper", name), buffer); err != nil || n > 0 {
			t.Errorf("%s has %q, %v", name, buffer[:max(n, 0)], err)
		}
	}
}

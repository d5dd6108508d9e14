package child

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// defaultACL is the attribute of a directory that the files in it inherit.
const defaultACL = "system.posix_acl_default"

// lastAttributes are what a directory gets after all entries: what is written into it later would change its times, and would
// inherit the ACL.
type lastAttributes struct {
	times []unix.Timespec
	acl   []byte
}

// setAttributes gives a file what its entry says. What it has already is not set again: that costs the kernel as much as a
// change, and most new files have the right owner and mode. The order counts: a new owner takes capabilities and setuid bits
// away, and an ACL changes the mode.
func (l *layer) setAttributes(header *tar.Header, path string) error {
	var has unix.Stat_t
	if err := unix.Lstat(path, &has); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	otherMode := int64(has.Mode&0o7777) != header.Mode&0o7777
	if int(has.Uid) != header.Uid || int(has.Gid) != header.Gid {
		if err := os.Lchown(path, header.Uid, header.Gid); err != nil {
			return err
		}
		otherMode = otherMode || has.Mode&(unix.S_ISUID|unix.S_ISGID) != 0
	}
	var last lastAttributes
	xattrs := false
	for key, value := range header.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok {
			continue
		}
		xattrs = true
		if name == defaultACL && header.Typeflag == tar.TypeDir {
			last.acl = []byte(value)
			continue
		}
		otherMode = true
		if err := setXattr(path, name, []byte(value)); err != nil {
			return err
		}
	}
	if otherMode && header.Typeflag != tar.TypeSymlink {
		if err := chmod(path, uint32(header.Mode)); err != nil {
			return err
		}
	}
	last.times = []unix.Timespec{timespec(header.AccessTime), timespec(header.ModTime)}
	if header.AccessTime.IsZero() {
		last.times[0] = last.times[1]
	}
	if header.Typeflag == tar.TypeDir {
		l.last[path] = last
		return nil
	}
	if xattrs { // they may take a block
		if err := unix.Lstat(path, &has); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
	}
	l.counter.add(&has)
	return setTimes(path, last.times)
}

// setXattr sets an attribute. What the kind of file or the file system cannot have, the image does without.
func setXattr(path, name string, value []byte) error {
	err := unix.Lsetxattr(path, name, value, 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) && strings.HasPrefix(name, "user.") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot set the attribute %s: %w", name, err)
	}
	return nil
}

// chmod follows links, of which path is none.
func chmod(path string, mode uint32) error {
	if err := unix.Chmod(path, mode&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}

// timespec is exact for all times that an archive can hold.
func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

func setTimes(path string, times []unix.Timespec) error {
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimensat", Path: path, Err: err}
	}
	return nil
}

// copyAttributes gives a file what another has.
func (l *layer) copyAttributes(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: from, Err: err}
	}
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	last := lastAttributes{times: []unix.Timespec{st.Atim, st.Mtim}}
	dir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	err := eachXattr(from, func(name string, value []byte) error {
		if name == defaultACL && dir {
			last.acl = value
			return nil
		}
		return setXattr(to, name, value)
	})
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := chmod(to, st.Mode); err != nil {
			return err
		}
	}
	if dir {
		l.last[to] = last
		return nil
	}
	return setTimes(to, last.times)
}

// finishDirectories sets what directories get after all entries.
func (l *layer) finishDirectories() error {
	if !l.root && l.lower != "" {
		if err := l.copyAttributes(l.lower, l.upper); err != nil {
			return err
		}
	}
	for path, last := range l.last {
		if fi, err := os.Lstat(path); err != nil || !fi.IsDir() {
			continue // a later entry has replaced it
		}
		if last.acl != nil {
			if err := setXattr(path, defaultACL, last.acl); err != nil {
				return err
			}
		}
		if err := setTimes(path, last.times); err != nil {
			return err
		}
	}
	return nil
}

// clearXattrs removes the attributes that an entry may set.
func clearXattrs(path string) error {
	return eachXattr(path, func(name string, _ []byte) error {
		if err := unix.Lremovexattr(path, name); err != nil {
			return fmt.Errorf("cannot remove the attribute %s: %w", name, err)
		}
		return nil
	})
}

// eachXattr calls f for the attributes of a file that an entry may set.
func eachXattr(path string, f func(name string, value []byte) error) error {
	list, err := readXattr(func(buffer []byte) (int, error) { return unix.Llistxattr(path, buffer) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot list the attributes: %w", err)
	}
	for name := range bytes.SplitSeq(bytes.TrimSuffix(list, []byte{0}), []byte{0}) {
		name := string(name)
		if !allowedXattr(name) {
			continue
		}
		value, err := readXattr(func(buffer []byte) (int, error) { return unix.Lgetxattr(path, name, buffer) })
		if err != nil {
			return fmt.Errorf("cannot read the attribute %s: %w", name, err)
		}
		if err := f(name, value); err != nil {
			return err
		}
	}
	return nil
}

// readXattr reads into a buffer of the size that read asks for.
func readXattr(read func(buffer []byte) (int, error)) ([]byte, error) {
	size, err := read(nil)
	if err != nil || size == 0 {
		return nil, err
	}
	buffer := make([]byte, size)
	size, err = read(buffer)
	return buffer[:max(size, 0)], err
}

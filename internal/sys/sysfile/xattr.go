package sysfile

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxXattr bounds the value of an attribute that is read.
const maxXattr = 4096

// Xattr returns an attribute of an open file, of a link's own when f is one. The
// error wraps unix's: ENODATA when it has none, ENOTSUP when its file system has no
// attributes.
func Xattr(f *os.File, attr string) (string, error) {
	value := make([]byte, maxXattr)
	n, err := unix.Getxattr(throughProc(f), attr, value)
	if err != nil {
		return "", &os.PathError{Op: "getxattr " + attr, Path: f.Name(), Err: err}
	}
	return string(value[:n]), nil
}

// SetXattr sets an attribute of an open file, which may be one of OpenEntry.
func SetXattr(f *os.File, attr, value string) error {
	if err := unix.Setxattr(throughProc(f), attr, []byte(value), 0); err != nil {
		return &os.PathError{Op: "setxattr " + attr, Path: f.Name(), Err: err}
	}
	return nil
}

// throughProc is a path to an open file: the calls that take descriptors refuse
// those of OpenEntry.
func throughProc(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// TakesXattr reports whether the file system of f takes an attribute, which stays what
// it is. A file that has none of that name counts as one that may.
func TakesXattr(f *os.File, attr string) (bool, error) {
	now, err := Xattr(f, attr)
	if errors.Is(err, unix.ENODATA) {
		return true, nil
	}
	if err == nil {
		err = SetXattr(f, attr, now)
	}
	if errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	return err == nil, err
}

// SetXattrBeneath sets an extended attribute of the directory name beneath root.
// No symbolic link is followed on the way, and nothing outside of root is touched:
// the tree may be anybody's.
func SetXattrBeneath(root *os.File, name, attr string, value []byte) error {
	name = strings.TrimPrefix(name, "/")
	if name == "" {
		name = "."
	}
	fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fsetxattr(fd, attr, value, 0); err != nil {
		return &os.PathError{Op: "setxattr " + attr, Path: name, Err: err}
	}
	return nil
}

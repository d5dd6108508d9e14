package debugcmd

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// tmpFile opens a file without a name in a directory.
const tmpFile = unix.O_TMPFILE

// noTmpFile reports whether an error means that the file system or the kernel has no such files.
func noTmpFile(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL)
}

// linkFile gives a file without a name a name. It fails with EEXIST for one that is taken.
func linkFile(f *os.File, name string) error {
	err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: "the file without a name", New: name, Err: err}
	}
	return nil
}

package sysfile

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DiskFree returns how many bytes the file system of path can still take.
func DiskFree(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// DiskSize is how large a file system is and how many files it can hold.
type DiskSize struct {
	Bytes, Inodes, InodesFree uint64
}

// SizeOf returns the size of the file system of path.
func SizeOf(path string) (DiskSize, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return DiskSize{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return DiskSize{Bytes: st.Blocks * uint64(st.Bsize), Inodes: st.Files, InodesFree: st.Ffree}, nil
}

// SyncFS writes everything that the file system of path holds in memory to disk.
func SyncFS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return &os.PathError{Op: "syncfs", Path: path, Err: err}
	}
	return nil
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

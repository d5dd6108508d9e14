package sysfile

import (
	"os"

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

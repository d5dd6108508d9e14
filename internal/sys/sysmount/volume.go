package sysmount

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// MountMemoryVolume mounts a tmpfs of at most size bytes (0: the kernel's default)
// on the directory path. Programs may be run from it; devices and setuid bits do
// not count.
func MountMemoryVolume(path string, size int64) error {
	options := "mode=0777"
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	if err := unix.Mount("berth-volume", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("cannot mount a tmpfs on %s: %w", path, err)
	}
	return nil
}

// MountHugePages mounts a hugetlbfs with pages of so many bytes on a directory.
func MountHugePages(path string, page int64) error {
	if err := unix.Mount("berth-volume", path, "hugetlbfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=0777,pagesize=%d", page)); err != nil {
		return fmt.Errorf("cannot mount huge pages of %d bytes on %s: %w", page, path, err)
	}
	return nil
}

package sysfile

import (
	"errors"
	"fmt"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// EnsureTmpfs mounts a tmpfs on dir, which exists, unless dir is on one already.
// source is its name in the mount table, by which MountedFrom finds it again.
func EnsureTmpfs(dir, source string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("cannot look at the file system of %s: %w", dir, err)
	}
	if st.Type == unix.TMPFS_MAGIC {
		return nil
	}
	if err := unix.Mount(source, dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711"); err != nil {
		return fmt.Errorf("cannot mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// MountedFrom reports whether dir is a mount point of a mount named source.
func MountedFrom(dir, source string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil {
		return false, fmt.Errorf("cannot read the mount table: %w", err)
	}
	return len(mounts) > 0 && mounts[0].Source == source, nil
}

// Unmount unmounts dir. Nil when nothing is mounted there.
func Unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("cannot unmount %s: %w", dir, err)
}

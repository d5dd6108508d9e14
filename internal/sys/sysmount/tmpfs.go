package sysmount

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysfd"
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

// MountTmpfs mounts a tmpfs on the directory path, for any user to write into.
func MountTmpfs(path string, size int64, owner sysfd.Owner) error {
	options := fmt.Sprintf("mode=1777,size=%d,uid=%d,gid=%d", size, owner.UID, owner.GID)
	if err := unix.Mount("shm", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("cannot mount a tmpfs on %s: %w", path, err)
	}
	return nil
}

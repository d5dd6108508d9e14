package sysmount

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// IsMountPoint reports whether something is mounted on path itself.
func IsMountPoint(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// MountedFrom reports whether dir is a mount point of a mount named source.
func MountedFrom(dir, source string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil {
		return false, fmt.Errorf("cannot read the mount table: %w", err)
	}
	return len(mounts) > 0 && mounts[0].Source == source, nil
}

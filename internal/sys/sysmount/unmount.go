package sysmount

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Unmount unmounts dir. Nil when nothing is mounted there.
func Unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("cannot unmount %s: %w", dir, err)
}

// Detach unmounts path lazily: the mount disappears at once, and is released when
// its last user is gone. Nil when path is not a mount point or absent.
func Detach(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return nil
}

// UnmountBelow unmounts all that is mounted on dir and below it, the last mount first.
// Nil when nothing is.
func UnmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("cannot read the mount table: %w", err)
	}
	slices.SortStableFunc(mounts, func(a, b *mountinfo.Info) int {
		return cmp.Or(cmp.Compare(len(b.Mountpoint), len(a.Mountpoint)), cmp.Compare(b.ID, a.ID))
	})
	var failed []error
	for _, m := range mounts {
		failed = append(failed, Unmount(m.Mountpoint))
	}
	return errors.Join(failed...)
}

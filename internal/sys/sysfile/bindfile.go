package sysfile

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// BindFile mounts an open file or directory on target, which is of the same kind and
// exists. What its path leads to by now does not matter.
func BindFile(f *os.File, target string) error {
	source := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot mount %s on %s: %w", f.Name(), target, err)
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

// MountHugePages mounts a hugetlbfs with pages of so many bytes on a directory.
func MountHugePages(path string, page int64) error {
	if err := unix.Mount("berth-volume", path, "hugetlbfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=0777,pagesize=%d", page)); err != nil {
		return fmt.Errorf("cannot mount huge pages of %d bytes on %s: %w", page, path, err)
	}
	return nil
}

package sysmount

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// BindMapped mounts on the directory target what the directory source holds (not
// what is mounted below it), with owners as the user namespace at userns maps
// them. Kind Unsupported where the kernel or source's file system cannot.
func BindMapped(source, target, userns string) error {
	tree, err := openMapped(source, userns)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot mount %s with mapped ids: %w", source, err)
	}
	return nil
}

// openMapped returns a detached mount.
func openMapped(source, userns string) (fd int, err error) {
	return openTree(source, userns, unix.MountAttr{})
}

// openTree returns a detached mount of a directory with attributes, and ids as the user namespace at userns maps them; "" maps
// none.
func openTree(source, userns string, attr unix.MountAttr) (fd int, err error) {
	if userns != "" {
		ns, err := os.Open(userns)
		if err != nil {
			return -1, fmt.Errorf("cannot open the user namespace to map ids with: %w", err)
		}
		defer ns.Close()
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(ns.Fd())
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, unsupportedCall(&os.PathError{Op: "open_tree", Path: source, Err: err}, err)
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(tree)
		switch {
		case userns == "":
			return -1, unsupportedCall(fmt.Errorf("cannot set the attributes of a mount of %s: %w", source, err), err)
		case errors.Is(err, unix.EINVAL):
			return -1, fmt.Errorf("the file system of %s cannot map ids on this kernel: %w", source, errs.Unsupported)
		}
		return -1, unsupportedCall(fmt.Errorf("cannot map the ids of %s: %w", source, err), err)
	}
	return tree, nil
}

// BindRoot mounts the directory source on target as a file system of its own would be: what the host's mount of source
// forbids (nosuid, nodev, noexec) does not count, and mounts on either do not appear on the other. Ids are as the user
// namespace at userns maps them; "" maps none, and needs no certain kernel. Kind Unsupported where the kernel (before 5.12) or
// source's file system cannot map them.
func BindRoot(source, target, userns string, readOnly bool) error {
	attr := unix.MountAttr{
		Attr_clr:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY,
		Propagation: unix.MS_PRIVATE,
	}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	tree, err := openTree(source, userns, attr)
	if userns == "" && errors.Is(err, unix.ENOSYS) {
		return bindRootBefore(source, target, readOnly)
	}
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount " + source + " on", Path: target, Err: err}
	}
	return nil
}

// bindRootBefore is BindRoot for kernels before mount_setattr.
func bindRootBefore(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount " + source + " on", Path: target, Err: err}
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT) // without them, nothing is forbidden
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	err := unix.Mount("", target, "", flags, "")
	if err == nil {
		err = unix.Mount("", target, "", unix.MS_PRIVATE, "")
	}
	if err != nil {
		return errors.Join(&os.PathError{Op: "change the mount", Path: target, Err: err}, Detach(target))
	}
	return nil
}

// ProbeMapped reports whether the file system of the directory dir maps ids: nil, or
// why not, of kind Unsupported.
func ProbeMapped(dir, userns string) error {
	tree, err := openMapped(dir, userns)
	if err != nil {
		return err
	}
	return unix.Close(tree)
}

// ProbeMountAttributes reports whether the kernel changes a mount and all below it at
// once (Linux 5.12), which recursive read-only mounts need.
func ProbeMountAttributes() error {
	err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{})
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("the kernel has no mount_setattr: %w", errs.Unsupported)
	}
	return nil
}

func unsupportedCall(err, errno error) error {
	if errors.Is(errno, unix.ENOSYS) || errors.Is(errno, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", err, errs.Unsupported)
	}
	return err
}

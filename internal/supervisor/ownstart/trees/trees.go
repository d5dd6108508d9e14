// Package trees has the kernel's calls on trees of mounts that are known by a descriptor of their root.
package trees

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Clone returns a detached clone of the mounts at a path, or at dir if the path is "".
func Clone(dir int, name string, recursive bool) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dir, name, flags)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	return fd, nil
}

// Attach moves a detached tree onto a mount point. Both are descriptors: no path is looked up again.
func Attach(tree, target int) error {
	err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// Change changes attributes of the mount at the root of a tree, or of all its mounts.
func Change(tree int, attr *unix.MountAttr, recursive bool) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(tree, "", flags, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// Propagate sets a propagation type (MS_SLAVE, ...), of the whole tree with MS_REC.
func Propagate(tree int, propagation uint64) error {
	err := Change(tree, &unix.MountAttr{Propagation: propagation &^ unix.MS_REC}, propagation&unix.MS_REC != 0)
	if err != nil {
		return fmt.Errorf("set the propagation: %w", err)
	}
	return nil
}

// MapIDs shows the files of a detached tree with owners as the user namespace at a path maps them: those
// of the mount at its root, or of all its mounts.
func MapIDs(tree int, userNamespace string, recursive bool) error {
	ns, err := unix.Open(userNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the user namespace %s: %w", userNamespace, err)
	}
	defer unix.Close(ns)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}
	if err := Change(tree, attr, recursive); err != nil {
		return fmt.Errorf("map the ids of its file system: %w", err)
	}
	return nil
}

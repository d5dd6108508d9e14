package child

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// collect clones the root and the sources of bind mounts in the host's mount namespace, where this thread
// is for that time.
func (c *container) collect() error {
	own, err := unix.Openat(int(c.proc), "thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open the own mount namespace: %w", err)
	}
	defer unix.Close(own)
	if err := unix.Setns(c.HostMounts, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot enter the host's mount namespace: %w", err)
	}
	unix.Close(c.HostMounts)
	if c.root, err = cloneTree(unix.AT_FDCWD, c.Root.Path, true); err != nil {
		return failure.New(failure.OfSpec, "root.path", "invalid rootfs %s: %w", c.Root.Path, err)
	}
	for i := range c.Mounts {
		if m := &c.Mounts[i]; m.Bind {
			if c.trees[i], err = cloneTree(unix.AT_FDCWD, m.Source, m.Recursive); err != nil {
				return failure.New(failure.OfMount, m.Target, "cannot mount %q to %q: open the source: %w", m.Source, m.Target, err)
			}
		}
	}
	if err := unix.Setns(own, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot leave the host's mount namespace: %w", err)
	}
	return nil
}

// cloneTree returns a detached clone of the mounts at a path.
func cloneTree(dir int, name string, recursive bool) (int, error) {
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

// assemble attaches the root, and all mounts and devices in it.
func (c *container) assemble() error {
	for _, propagation := range c.Root.Tree {
		if err := propagate(c.root, propagation); err != nil {
			return fmt.Errorf("cannot set the propagation of the root: %w", err)
		}
	}
	if err := unix.MoveMount(c.root, "", unix.AT_FDCWD, "/"+fork.RootName, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot mount the root: %w", err)
	}
	for i := range c.Mounts {
		m := &c.Mounts[i]
		if err := c.mount(m, i); err != nil {
			return failure.New(failure.OfMount, m.Target, "cannot mount %q to %q: %w", m.Source, m.Target, err)
		}
	}
	if c.Dev {
		return c.fillDev()
	}
	return nil
}

// mount makes one mount. index is its place in the list.
func (c *container) mount(m *order.Mount, index int) error {
	target, made, err := c.targetOf(m, index)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	tree := -1
	if m.Bind {
		tree = c.trees[index]
	} else if tree, err = newFilesystem(m, target, made); err != nil {
		return err
	}
	for _, propagation := range m.Tree {
		if err := propagate(tree, propagation); err != nil {
			return err
		}
	}
	if err := attach(tree, target); err != nil {
		return err
	}
	for _, propagation := range m.Propagation {
		if err := propagate(tree, propagation); err != nil {
			return err
		}
	}
	if err := setAttributes(tree, m); err != nil {
		return err
	}
	for i := 0; i+1 < len(m.Links); i += 2 {
		if err := unix.Symlinkat(m.Links[i+1], tree, m.Links[i]); err != nil && err != unix.EEXIST {
			return fmt.Errorf("make the link %s: %w", m.Links[i], err)
		}
	}
	keep := isKernel(m)
	if keep {
		c.kernel[clean(m.Target)] = tree
	}
	if m.ReadOnlyLast {
		c.last = append(c.last, tree)
		return nil
	}
	if !keep {
		unix.Close(tree)
	}
	return nil
}

// isKernel is true for a procfs and a sysfs.
func isKernel(m *order.Mount) bool { return !m.Bind && (m.Type == "proc" || m.Type == "sysfs") }

// targetOf returns the mount point of a mount, as a path, and whether it is new.
func (c *container) targetOf(m *order.Mount, index int) (target int, made bool, err error) {
	if isKernel(m) {
		if err := checkPlace(clean(m.Target), m.Type == "proc"); err != nil {
			return -1, false, err
		}
		target, err = c.ordinaryDir(m.Target)
		return target, false, err
	}
	asFile, ofProcfs := false, false
	if m.Bind {
		var st unix.Stat_t
		var fs unix.Statfs_t
		if err := unix.Fstat(c.trees[index], &st); err != nil {
			return -1, false, fmt.Errorf("stat the source: %w", err)
		}
		if err := unix.Fstatfs(c.trees[index], &fs); err != nil {
			return -1, false, fmt.Errorf("statfs the source: %w", err)
		}
		asFile, ofProcfs = st.Mode&unix.S_IFMT != unix.S_IFDIR, fs.Type == unix.PROC_SUPER_MAGIC
	}
	if target, made, err = c.mountPoint(m.Target, asFile); err != nil {
		return -1, false, err
	}
	place, err := c.place(target)
	if err == nil {
		err = checkPlace(place, ofProcfs)
	}
	if err != nil {
		unix.Close(target)
		return -1, false, err
	}
	return target, made, nil
}

// newFilesystem returns the detached mount of a new filesystem. A tmpfs takes the mode of its mount point,
// unless the mount has another, or the mount point was made for it.
func newFilesystem(m *order.Mount, target int, made bool) (int, error) {
	fs, err := unix.Fsopen(m.Type, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", m.Type, err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", m.Source); err != nil {
		return -1, fmt.Errorf("set the source: %w", err)
	}
	params := m.Params
	if m.Type == "tmpfs" && !made {
		var st unix.Stat_t
		if err := unix.Fstat(target, &st); err != nil {
			return -1, fmt.Errorf("stat the mount point: %w", err)
		}
		params = append([]string{"mode=" + strconv.FormatUint(uint64(st.Mode&0o7777), 8)}, params...)
	}
	for _, param := range params {
		key, value, isString := strings.Cut(param, "=")
		if isString {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, key)
		}
		if err != nil {
			return -1, fmt.Errorf("set option %s: %w", param, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make a filesystem of type %s: %w", m.Type, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(m.Set))
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", m.Type, err)
	}
	return fd, nil
}

// attach moves a detached mount onto a mount point. Both are descriptors: no path is looked up again.
func attach(tree, target int) error {
	err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// setAttributes gives a mount its flags. A new filesystem has those of Set already.
func setAttributes(tree int, m *order.Mount) error {
	if m.Bind && m.Set|m.Clear != 0 {
		if err := change(tree, &unix.MountAttr{Attr_set: m.Set, Attr_clr: m.Clear}, false); err != nil {
			return err
		}
	}
	if m.SetAll|m.ClearAll != 0 {
		return change(tree, &unix.MountAttr{Attr_set: m.SetAll, Attr_clr: m.ClearAll}, true)
	}
	return nil
}

func change(tree int, attr *unix.MountAttr, recursive bool) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(tree, "", flags, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// propagate sets a propagation type, of the whole tree with MS_REC.
func propagate(tree int, propagation uint64) error {
	err := change(tree, &unix.MountAttr{Propagation: propagation &^ unix.MS_REC}, propagation&unix.MS_REC != 0)
	if err != nil {
		return fmt.Errorf("set the propagation: %w", err)
	}
	return nil
}

// isAbsent is true when a path in the container leads nowhere.
func isAbsent(err error) bool { return errors.Is(err, unix.ENOENT) }

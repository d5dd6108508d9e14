package child

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/supervisor/ownstart/trees"
)

// collect clones the root and the sources of mounts: in the host's mount namespace, where this thread is
// for that time, or where the supervisor has staged them.
func (c *container) collect() error {
	if c.HostMounts < 0 {
		return c.cloneSources()
	}
	own, err := unix.Openat(int(c.proc), "thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open the own mount namespace: %w", err)
	}
	defer unix.Close(own)
	if err := unix.Setns(c.HostMounts, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot enter the host's mount namespace: %w", err)
	}
	unix.Close(c.HostMounts)
	if err := c.cloneSources(); err != nil {
		return err
	}
	if err := unix.Setns(own, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot leave the host's mount namespace: %w", err)
	}
	return nil
}

// cloneSources clones them in the mount namespace of this thread.
func (c *container) cloneSources() error {
	sources := c.Sources()
	for i := range sources {
		s := &sources[i]
		fd, err := c.cloneSource(s, i)
		if err != nil && c.HostMounts < 0 && s.Mount >= 0 {
			// Its source is there. The kernel refuses a clone that would show what locked mounts cover.
			c.refused[s.Mount] = err
			continue
		}
		if err != nil {
			return c.SourceFailure(s, err)
		}
		switch {
		case s.Mount >= 0:
			c.trees[s.Mount] = fd
		case s.Device >= 0:
			c.nodes[s.Device] = fd
		default:
			c.root = fd
		}
	}
	return nil
}

// cloneSource clones one source. index is its number on the stage.
func (c *container) cloneSource(s *order.Source, index int) (int, error) {
	if c.HostMounts < 0 {
		return trees.Clone(unix.AT_FDCWD, order.StagedAt(index), s.Recursive)
	}
	fd, err := trees.Clone(unix.AT_FDCWD, s.Path, s.Recursive)
	if err == nil && s.MapIDs != "" {
		err = trees.MapIDs(fd, s.MapIDs, s.MapAll)
	}
	return fd, err
}

// assemble attaches the root, and all mounts and devices in it.
func (c *container) assemble() error {
	for _, propagation := range c.Root.Tree {
		if err := trees.Propagate(c.root, propagation); err != nil {
			return fmt.Errorf("cannot set the propagation of the root: %w", err)
		}
	}
	if err := unix.MoveMount(c.root, "", unix.AT_FDCWD, "/"+order.RootName, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
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
	if m.CopyUp {
		if err := copyUp(target, tree); err != nil {
			return err
		}
	}
	for _, propagation := range m.Tree {
		if err := trees.Propagate(tree, propagation); err != nil {
			return err
		}
	}
	if err := trees.Attach(tree, target); err != nil {
		return err
	}
	for _, propagation := range m.Propagation {
		if err := trees.Propagate(tree, propagation); err != nil {
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
	if err := c.refused[index]; err != nil {
		return -1, false, err
	}
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

// setAttributes gives a mount its flags. A new filesystem has those of Set already.
func setAttributes(tree int, m *order.Mount) error {
	if m.Bind && m.Set|m.Clear != 0 {
		err := trees.Change(tree, &unix.MountAttr{Attr_set: m.Set, Attr_clr: m.Clear}, false)
		if errors.Is(err, unix.EPERM) {
			err = addAttributes(tree, m, err)
		}
		if err != nil {
			return err
		}
	}
	if m.SetAll|m.ClearAll != 0 {
		return trees.Change(tree, &unix.MountAttr{Attr_set: m.SetAll, Attr_clr: m.ClearAll}, true)
	}
	return nil
}

// addAttributes gives a bind mount its flags beside those of its source, which are locked in a user
// namespace. It refuses what the spec excludes, with the kernel's reason.
func addAttributes(tree int, m *order.Mount, reason error) error {
	const atime = unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME | unix.MS_STRICTATIME
	const lockable = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | atime
	var fs unix.Statfs_t
	if err := unix.Fstatfs(tree, &fs); err != nil {
		return fmt.Errorf("statfs the source: %w", err)
	}
	// The first ones have the same numbers in both systems.
	locked := uint64(fs.Flags) & (unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME)
	switch {
	case uint64(fs.Flags)&unix.ST_RELATIME != 0:
		locked |= unix.MS_RELATIME
	case locked&unix.MS_NOATIME == 0:
		locked |= unix.MS_STRICTATIME
	}
	if locked&m.Refuse&lockable != 0 || m.Request&atime != 0 && m.Request&atime != locked&atime {
		return fmt.Errorf("flags %#x of the source are locked: %w", locked, reason)
	}
	const times = unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME
	return trees.Change(tree, &unix.MountAttr{Attr_set: m.Set &^ times, Attr_clr: m.Clear & unix.MOUNT_ATTR_NOSYMFOLLOW}, false)
}

// isAbsent is true when a path in the container leads nowhere.
func isAbsent(err error) bool { return errors.Is(err, unix.ENOENT) }

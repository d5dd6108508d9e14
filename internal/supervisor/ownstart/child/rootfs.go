package child

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/supervisor/ownstart/trees"
)

// enter makes the root directory this process's root, and does what is done in it.
func (c *container) enter() error {
	if err := c.pivot(); err != nil {
		return fmt.Errorf("cannot change the root: %w", err)
	}
	if c.Dev {
		if err := reopenNull(c); err != nil {
			return failure.New(failure.OfDevNull, "/dev/null", "cannot use /dev/null in the container: %w", err)
		}
	}
	if err := c.makeWorkDir(); err != nil {
		return err
	}
	if c.Console >= 0 {
		if err := c.openTerminal(true); err != nil {
			return fmt.Errorf("cannot make the terminal: %w", err)
		}
	}
	if err := c.makeReadOnly(); err != nil {
		return err
	}
	if err := c.setNames(); err != nil {
		return err
	}
	for _, s := range c.Sysctls {
		if err := c.writeSysctl(s); err != nil {
			return failure.New(failure.OfSysctl, s.Name, "cannot set sysctl %s to %q: %w", s.Name, s.Value, err)
		}
	}
	for _, name := range c.ReadOnly {
		if err := c.protectPath(name); err != nil {
			return fmt.Errorf("cannot make %s read-only: %w", name, err)
		}
	}
	if err := c.mask(); err != nil {
		return fmt.Errorf("cannot mask a path: %w", err)
	}
	return nil
}

// pivot changes the root, also of the other threads, and detaches the old one, which is empty.
func (c *container) pivot() error {
	if err := unix.Fchdir(c.root); err != nil {
		return fmt.Errorf("chdir: %w", err)
	}
	// The old root ends up on top of the new one, where "." is it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("chdir: %w", err)
	}
	if c.Root.Final != 0 {
		return trees.Propagate(c.root, c.Root.Final)
	}
	return nil
}

// makeWorkDir makes the working directory where it is missing.
func (c *container) makeWorkDir() error {
	if c.Process.Cwd == "" {
		return nil
	}
	if err := os.MkdirAll(c.Process.Cwd, directoryMode); err != nil {
		return failure.New(failure.OfDirectory, c.Process.Cwd, "cannot make the working directory: %w", err)
	}
	return nil
}

// makeReadOnly completes what had to be writable so far.
func (c *container) makeReadOnly() error {
	for _, tree := range c.last {
		if err := trees.Change(tree, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}, false); err != nil {
			return fmt.Errorf("cannot make a mount read-only: %w", err)
		}
	}
	if !c.Root.ReadOnly {
		return nil
	}
	// Without other flags, as libcontainer does.
	attr := &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY,
		Attr_clr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSYMFOLLOW,
	}
	err := trees.Change(c.root, attr, false)
	if errors.Is(err, unix.EPERM) { // they are locked in a user namespace
		attr.Attr_clr = 0
		err = trees.Change(c.root, attr, false)
	}
	if err != nil {
		return fmt.Errorf("cannot make the root read-only: %w", err)
	}
	return nil
}

// setNames sets the names of the UTS namespace.
func (c *container) setNames() error {
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
			return fmt.Errorf("cannot set the hostname: %w", err)
		}
	}
	if c.Domainname != "" {
		if err := unix.Setdomainname([]byte(c.Domainname)); err != nil {
			return fmt.Errorf("cannot set the domain name: %w", err)
		}
	}
	return nil
}

// writeSysctl writes a kernel parameter through the procfs of this process.
func (c *container) writeSysctl(s order.Sysctl) error {
	how := &unix.OpenHow{
		Flags:   unix.O_WRONLY | unix.O_TRUNC | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := unix.Openat2(int(c.proc), "sys/"+s.File, how)
	if err != nil {
		return fmt.Errorf("open it: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(s.Value)); err != nil {
		return fmt.Errorf("write it: %w", err)
	}
	return nil
}

// protectPath makes what is at a path read-only: a clone of it is mounted on it. Nothing happens where
// nothing is.
func (c *container) protectPath(name string) error {
	target, err := c.openProtected(name)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(target)
	tree, err := trees.Clone(target, "", true)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	// In a volume that is shared with the host, the clone appears on the host, too. There it stays writable:
	// only what is set before would come with it.
	if err := trees.Attach(tree, target); err != nil {
		return err
	}
	return trees.Change(tree, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}, false)
}

// mask hides what is at the masked paths: files behind the container's /dev/null, directories behind an
// empty directory, which they share.
func (c *container) mask() error {
	if len(c.Masked) == 0 {
		return nil
	}
	null, err := c.open("/dev/null", 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	if !isNull(null) {
		return failure.New(failure.OfDevNull, "/dev/null", "the container's /dev/null is not the null device")
	}
	empty := -1
	done := make(map[string]bool, len(c.Masked))
	for _, name := range c.Masked {
		if done[clean(name)] {
			continue
		}
		done[clean(name)] = true
		target, err := c.openProtected(name)
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := hide(target, null, &empty); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		unix.Close(target)
	}
	return nil
}

// hide mounts over target. empty is the mount of the empty directory, once there is one.
func hide(target, null int, empty *int) error {
	var st unix.Stat_t
	if err := unix.Fstat(target, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && *empty < 0 {
		var err error
		if *empty, err = emptyDirectory(); err != nil {
			return err
		}
		return trees.Attach(*empty, target)
	}
	source := null
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		source = *empty
	}
	tree, err := trees.Clone(source, "", false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return trees.Attach(tree, target)
}

// emptyDirectory returns the detached mount of a read-only filesystem without a file.
func emptyDirectory() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, param := range []string{"source=tmpfs", "nr_blocks=1", "nr_inodes=1"} {
		key, value, _ := strings.Cut(param, "=")
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return -1, fmt.Errorf("set %s: %w", param, err)
		}
	}
	if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
		return -1, fmt.Errorf("set ro: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make a tmpfs: %w", err)
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
}

package child

import (
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/trees"
)

// openTerminal makes a terminal of the container's devpts, sends its master, and makes it the
// controlling terminal, the standard streams and, if console is true, /dev/console.
func (c *container) openTerminal(console bool) error {
	master, slave, err := c.newTerminal()
	if err != nil {
		return failure.New(failure.OfSpec, "/dev/pts", "%w", err)
	}
	if c.Width != 0 && c.Height != 0 {
		size := &unix.Winsize{Row: uint16(c.Height), Col: uint16(c.Width)}
		if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, size); err != nil {
			return fmt.Errorf("set its size: %w", err)
		}
	}
	if console {
		if err := c.mountConsole(slave); err != nil {
			return failure.New(failure.OfSpec, "/dev/console", "mount it on /dev/console: %w", err)
		}
	}
	if err := unix.Sendmsg(c.Console, []byte("/dev/ptmx"), unix.UnixRights(master), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("send it: %w", err)
	}
	for stream := range 3 {
		if err := unix.Dup3(slave, stream, 0); err != nil {
			return err
		}
	}
	unix.Close(master)
	unix.Close(slave)
	unix.Close(c.Console)
	if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("make it the controlling terminal: %w", err)
	}
	return nil
}

// newTerminal returns the two ends of a new terminal. The device is checked before it is opened, and the
// slave is opened through the master: the container's files cannot redirect either.
func (c *container) newTerminal() (master, slave int, err error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	}
	device, err := unix.Openat2(c.root, "dev/pts/ptmx", how)
	if err != nil {
		return -1, -1, fmt.Errorf("open /dev/pts/ptmx: %w", err)
	}
	defer unix.Close(device)
	const ptmxInode, ttyAuxMajor, ptmxMinor = 2, 5, 2
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(device, &st); err != nil {
		return -1, -1, err
	}
	if err := unix.Fstatfs(device, &fs); err != nil {
		return -1, -1, err
	}
	//nolint:unconvert // Rdev is shorter on MIPS
	if fs.Type != unix.DEVPTS_SUPER_MAGIC || st.Ino != ptmxInode || st.Mode&unix.S_IFMT != unix.S_IFCHR ||
		uint64(st.Rdev) != unix.Mkdev(ttyAuxMajor, ptmxMinor) {
		return -1, -1, errors.New("/dev/pts/ptmx is not the device of a devpts")
	}
	flags := unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	master, err = unix.Openat(int(c.proc), "thread-self/fd/"+strconv.Itoa(device), flags, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("open /dev/pts/ptmx: %w", err)
	}
	unlocked := int32(0)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlocked))); errno != 0 {
		return -1, -1, fmt.Errorf("unlock it: %w", errno)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, uintptr(flags))
	if errno != 0 {
		return -1, -1, fmt.Errorf("open its slave: %w", errno)
	}
	return master, int(fd), nil
}

// mountConsole mounts the slave on /dev/console.
func (c *container) mountConsole(slave int) error {
	dev, err := c.open("/dev", unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	target, err := unix.Openat(dev, "console", unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, 0o666)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	tree, err := trees.Clone(slave, "", false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return trees.Attach(tree, target)
}

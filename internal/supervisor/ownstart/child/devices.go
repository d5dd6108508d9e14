package child

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/supervisor/ownstart/trees"
)

// fillDev makes device nodes, and the links of /dev.
func (c *container) fillDev() error {
	for i := range c.Devices {
		d := &c.Devices[i]
		place := c.makeDevice
		if c.BindDevices {
			place = func(d *order.Device) error { return c.mountDevice(d, c.nodes[i]) }
		}
		if err := place(d); err != nil {
			return failure.New(failure.OfDevice, d.Path, "cannot make device node %s: %w", d.Path, err)
		}
	}
	dev, err := c.makeDir("/dev")
	if err != nil {
		return fmt.Errorf("cannot open /dev in the container: %w", err)
	}
	defer unix.Close(dev)
	// The node that an image may have leads to the host's terminals.
	if err := unix.Unlinkat(dev, "ptmx", 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("cannot replace /dev/ptmx in the container: %w", err)
	}
	links := [][2]string{
		{"ptmx", "pts/ptmx"},
		{"fd", "/proc/self/fd"},
		{"stdin", "/proc/self/fd/0"},
		{"stdout", "/proc/self/fd/1"},
		{"stderr", "/proc/self/fd/2"},
	}
	if c.Core {
		links = append(links, [2]string{"core", "/proc/kcore"})
	}
	for _, link := range links {
		if err := unix.Symlinkat(link[1], dev, link[0]); err != nil && err != unix.EEXIST {
			return fmt.Errorf("cannot make the link /dev/%s in the container: %w", link[0], err)
		}
	}
	return nil
}

// makeDevice makes one node. One that the image or a mount has stays.
func (c *container) makeDevice(d *order.Device) error {
	dir, base, err := c.makeParent(d.Path)
	if err != nil {
		return fmt.Errorf("make its directory: %w", err)
	}
	defer unix.Close(dir)
	number := unix.Mkdev(uint32(d.Major), uint32(d.Minor))
	err = unix.Mknodat(dir, base, uint32(d.Mode), int(number))
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("mknod: %w", err)
	}
	fd, err := unix.Openat(dir, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := checkNode(fd, d); err != nil {
		return fmt.Errorf("something else is in its place: %w", err)
	}
	if d.UID == 0 && d.GID == 0 {
		return nil
	}
	if err := unix.Fchownat(fd, "", d.UID, d.GID, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("chown: %w", err)
	}
	return nil
}

// checkNode returns an error when a descriptor is not of the device that the order has.
func checkNode(fd int, d *order.Device) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	mode, number := uint64(st.Mode), uint64(st.Rdev) //nolint:unconvert // both are shorter on some architectures
	isDevice := d.Mode&unix.S_IFMT != unix.S_IFIFO
	if mode&unix.S_IFMT == d.Mode&unix.S_IFMT && (!isDevice || number == unix.Mkdev(uint32(d.Major), uint32(d.Minor))) {
		return nil
	}
	return fmt.Errorf("it is %s %d:%d, not %s %d:%d", typeOf(mode), unix.Major(number), unix.Minor(number), typeOf(d.Mode), d.Major, d.Minor)
}

// typeOf names the type of a file.
func typeOf(mode uint64) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	case unix.S_IFIFO:
		return "FIFO"
	}
	return "another file"
}

// mountDevice mounts a node of the host on a file that it makes. Nothing but that file is at the path,
// unless the image has something there.
func (c *container) mountDevice(d *order.Device, node int) error {
	defer unix.Close(node)
	if err := checkNode(node, d); err != nil {
		return fmt.Errorf("the host's node at its path is another one: %w", err)
	}
	dir, base, err := c.makeParent(d.Path)
	if err != nil {
		return fmt.Errorf("make its directory: %w", err)
	}
	defer unix.Close(dir)
	err = unix.Mknodat(dir, base, unix.S_IFREG, 0)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make its mount point: %w", err)
	}
	fd, err := unix.Openat(dir, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	for _, propagation := range c.Root.Tree[:min(1, len(c.Root.Tree))] {
		// As for every mount of the host that the container gets.
		if err := trees.Propagate(node, propagation); err != nil {
			return err
		}
	}
	return trees.Attach(node, fd)
}

// isNull is true for a descriptor of the null device.
func isNull(fd int) bool {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false
	}
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && uint64(st.Rdev) == unix.Mkdev(1, 3) //nolint:unconvert // it is shorter on MIPS
}

// reopenNull replaces standard streams that are the host's /dev/null by the container's.
func reopenNull(c *container) error {
	fd, err := c.openFile("/dev/null", unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !isNull(fd) {
		return errors.New("it is not the null device")
	}
	for stream := range 3 {
		if isNull(stream) {
			if err := unix.Dup3(fd, stream, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// openFile opens a file below the root.
func (c *container) openFile(name string, flags uint64) (int, error) {
	how := &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(c.root, clean(name)[1:], how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

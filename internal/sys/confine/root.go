package confine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysmount"
)

// mountFlags hold for each mount in the root of a program: the root itself, binds and the overlay.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// View is what the root of a program shows. All names are of directories of the starter.
type View struct {
	Binds []Bind
	// Overlay is a read-only overlay, shown under OverlayName; "" for none. It takes a bind, too.
	Overlay     sysmount.Overlay
	OverlayName string
}

// Bind is a directory that a root shows under Name.
type Bind struct {
	Source, Name string
	ReadOnly     bool
}

// enterEmptyRoot gives the calling thread, which is in a mount namespace of its own, a new root: a read-only file system that
// holds empty directories. No path leads anywhere else afterwards.
func enterEmptyRoot(dirs []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	const place = "/proc" // every host has it
	if err := unix.Mount("root", place, "tmpfs", mountFlags, "size=64k,mode=0755"); err != nil {
		return fmt.Errorf("cannot mount a private root: %w", err)
	}
	if err := unix.Chdir(place); err != nil {
		return fmt.Errorf("cannot enter a private root: %w", err)
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("cannot make a directory of a private root: %w", err)
		}
	}
	// The file system itself: it is the same one for all programs.
	if err := unix.Mount("", ".", "", unix.MS_REMOUNT|unix.MS_RDONLY|mountFlags, "size=64k,mode=0755"); err != nil {
		return fmt.Errorf("cannot make a private root read-only: %w", err)
	}
	// The old root ends up on top of the new one, where it can be detached by ".".
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cannot pivot into a private root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot leave the old root: %w", err)
	}
	return unix.Chdir("/")
}

// trees are the detached mounts of a view.
type trees struct {
	view  View
	binds []int
	// lower has the lower directories of the overlay, with what is mounted below; -1 for no overlay.
	lower int
}

// open opens a view, from the mount namespace of the calling thread.
func (v View) open() (_ *trees, err error) {
	t := &trees{view: v, lower: -1}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	for _, bind := range v.Binds {
		fd, err := cloneTree(bind.Source, 0)
		if err != nil {
			return nil, err
		}
		t.binds = append(t.binds, fd)
	}
	if v.OverlayName != "" {
		if t.lower, err = cloneTree(v.Overlay.LowerRoot, unix.AT_RECURSIVE); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func cloneTree(source string, flags uint) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|flags)
	if err != nil {
		return -1, fmt.Errorf("cannot clone the mount of %s: %w", source, err)
	}
	return fd, nil
}

func (t *trees) close() {
	for _, fd := range append(t.binds, t.lower) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// attach mounts the view into the root of the calling thread.
func (t *trees) attach() error {
	if t.view.OverlayName != "" {
		if err := t.attachOverlay("/" + t.view.Binds[0].Name); err != nil {
			return err
		}
	}
	for i, bind := range t.view.Binds {
		flags := uintptr(mountFlags)
		if bind.ReadOnly {
			flags |= unix.MS_RDONLY
		}
		if err := moveTo(t.binds[i], "/"+bind.Name); err != nil {
			return fmt.Errorf("cannot bind %s into a private root: %w", bind.Source, err)
		}
		if err := unix.Mount("", "/"+bind.Name, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
			return fmt.Errorf("cannot change the mount of %s in a private root: %w", bind.Source, err)
		}
	}
	return nil
}

// attachOverlay mounts the overlay. The kernel wants its lower directories below a mount of the namespace: they are at the
// directory meanwhile, which nothing else uses yet.
func (t *trees) attachOverlay(meanwhile string) error {
	if err := moveTo(t.lower, meanwhile); err != nil {
		return fmt.Errorf("cannot bind %s into a private root: %w", t.view.Overlay.LowerRoot, err)
	}
	if err := unix.Chdir(meanwhile); err != nil {
		return fmt.Errorf("cannot enter the lower directories of an overlay: %w", err)
	}
	overlay := "/" + t.view.OverlayName
	if err := t.view.Overlay.MountHere(overlay); err != nil {
		return err
	}
	// An overlay has flags of its own: without them the devices of a lower directory could be opened.
	if err := unix.Mount("", overlay, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|mountFlags, ""); err != nil {
		return fmt.Errorf("cannot change the mount of an overlay in a private root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount(meanwhile, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot detach the lower directories of an overlay: %w", err)
	}
	return nil
}

// moveTo attaches a detached mount. What is mounted on the host from now on does not appear in it.
func moveTo(tree int, target string) error {
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_REC|unix.MS_PRIVATE, "")
}

package sysproc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysmount"
)

// Bind is a directory that a private root shows under Name.
type Bind struct {
	Source, Name string
	ReadOnly     bool
}

// EnterPrivateRoot gives the calling process, which must be in a mount namespace
// of its own, a new root: a small read-only file system that holds the binds and,
// when overlayName is not "", a read-only overlay. It is mounted on place, an
// existing directory that holds none of the sources. No path leads anywhere else
// afterwards.
func EnterPrivateRoot(place string, binds []Bind, overlay sysmount.Overlay, overlayName string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("root", place, "tmpfs", flags, "size=64k,mode=0755"); err != nil {
		return fmt.Errorf("cannot mount a private root: %w", err)
	}
	for _, bind := range binds {
		if err := mountBind(bind, filepath.Join(place, bind.Name)); err != nil {
			return fmt.Errorf("cannot bind %s into a private root: %w", bind.Source, err)
		}
	}
	if overlayName != "" {
		target := filepath.Join(place, overlayName)
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		if err := sysmount.MountOverlay(overlay, target); err != nil {
			return err
		}
	}
	if err := unix.Mount("", place, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("cannot make a private root read-only: %w", err)
	}
	return pivot(place)
}

func mountBind(bind Bind, target string) error {
	if err := os.Mkdir(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(bind.Source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if bind.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", target, "", flags, "")
}

// pivot makes dir, a mount point, the root, and detaches the old one.
func pivot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("cannot enter a private root: %w", err)
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

// KeepCapabilities permanently drops all but the given capabilities (unix.CAP_...) in
// every thread of the process: it sets no_new_privs, too. It works only in programs
// without cgo, where Go can make a system call in all threads.
func KeepCapabilities(keep ...uint) error {
	var set [2]unix.CapUserData
	for _, capability := range keep {
		set[capability/32].Permitted |= 1 << (capability % 32)
		set[capability/32].Effective |= 1 << (capability % 32)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0)
	if errno == 0 {
		_, _, errno = syscall.AllThreadsSyscall(unix.SYS_CAPSET,
			uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&set[0])), 0)
	}
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return errors.New("cannot drop capabilities of all threads: this program is built with cgo")
	}
	return fmt.Errorf("cannot drop capabilities of all threads: %w", errno)
}

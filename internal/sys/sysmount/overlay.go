package sysmount

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay describes an overlay mount.
type Overlay struct {
	// Lower directories, topmost first, all beneath LowerRoot and relative to it.
	LowerRoot string
	Lower     []string
	// Upper and Work are absolute; both "" makes a read-only mount, which takes two
	// lower directories at least.
	Upper, Work string
	// ReadOnly makes a read-only mount, also with Upper.
	ReadOnly bool
	// Label is the SELinux label of every file in it, "" for those of the files
	// themselves.
	Label string
}

// MountOverlay mounts o on target. Lists of lower directories that do not fit
// into the one page that mount(2) takes are given relative to LowerRoot, from a
// thread of its own whose working directory that is.
func MountOverlay(o Overlay, target string) error {
	options := o.options(o.LowerRoot)
	if len(options) < os.Getpagesize() {
		return o.mount(target, options)
	}
	done := make(chan error)
	go func() {
		// The thread is never unlocked, so it ends with this goroutine, and its
		// working directory with it.
		runtime.LockOSThread()
		done <- o.mountRelative(target)
	}()
	return <-done
}

// MountHere mounts o on target. LowerRoot is the working directory of the calling thread, by whatever path.
func (o Overlay) MountHere(target string) error {
	options := o.options("")
	if len(options) >= os.Getpagesize() {
		return fmt.Errorf("cannot mount an overlay of %d layers: its options exceed a page", len(o.Lower))
	}
	return o.mount(target, options)
}

func (o Overlay) mountRelative(target string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cannot unshare a thread's working directory: %w", err)
	}
	if err := unix.Chdir(o.LowerRoot); err != nil {
		return fmt.Errorf("cannot enter %s: %w", o.LowerRoot, err)
	}
	return o.MountHere(target)
}

func (o Overlay) options(base string) string {
	var b strings.Builder
	b.WriteString("lowerdir=")
	for i, lower := range o.Lower {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(filepath.Join(base, lower))
	}
	if o.Upper != "" {
		fmt.Fprintf(&b, ",upperdir=%s,workdir=%s", o.Upper, o.Work)
	}
	// Without the inode index an upper directory may be mounted again after a
	// crash, whatever lower directories it has.
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		b.WriteString(",index=off")
	}
	if o.Label != "" {
		fmt.Fprintf(&b, ",context=%q", o.Label) // its level may have a comma
	}
	return b.String()
}

func (o Overlay) mount(target, options string) error {
	var flags uintptr
	if o.ReadOnly {
		flags = unix.MS_RDONLY
	}
	if err := unix.Mount("overlay", target, "overlay", flags, options); err != nil {
		return &os.PathError{Op: "mount overlay on", Path: target, Err: err}
	}
	return nil
}

// OnOverlay reports whether a directory is on an overlay.
func OnOverlay(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Type) == unix.OVERLAYFS_SUPER_MAGIC, nil
}

package rootfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// ProbeOverlay mounts an overlay in the store, and deletes a file and replaces a directory in it. It returns nil if the file
// system of the store can hold the directories of overlays, an error of kind Unsupported if it cannot, and another error if
// that is not known, as with a full disk.
func (p Paths) ProbeOverlay() (err error) {
	// As a directory of the pool: what a kill leaves, the next start removes.
	dir := filepath.Join(p.PoolDir(), strings.ToLower(rand.Text()))
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	const lower, file, old = "lower", "file", "old"
	overlay := sysmount.Overlay{LowerRoot: dir, Lower: []string{lower}, Upper: filepath.Join(dir, upperName), Work: filepath.Join(dir, workName)}
	target := filepath.Join(dir, mappedRootfs)
	for _, d := range []string{overlay.Upper, overlay.Work, target, filepath.Join(dir, lower, old)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	for _, name := range []string{file, filepath.Join(old, file)} {
		if err := os.WriteFile(filepath.Join(dir, lower, name), []byte("x"), 0o600); err != nil {
			return err
		}
	}
	if err := sysmount.MountOverlay(overlay, target); err != nil {
		return cannot(err, "hold the directories of an overlay")
	}
	defer func() { err = errors.Join(err, sysmount.Detach(target)) }()
	if err := errors.Join(os.Remove(filepath.Join(target, file)), os.RemoveAll(filepath.Join(target, old)), os.Mkdir(filepath.Join(target, old), 0o700)); err != nil {
		return cannot(err, "record deletions of an overlay")
	}
	// What an overlay has recorded, the layers of images record themselves.
	whiteout, replaced := filepath.Join(dir, "whiteout"), filepath.Join(dir, "replaced")
	if err := errors.Join(unix.Mknod(whiteout, unix.S_IFCHR, 0), os.Mkdir(replaced, 0o700), unix.Lsetxattr(replaced, sysfile.OverlayOpaque, []byte("y"), 0)); err != nil {
		return cannot(err, "record deletions of a layer")
	}
	left, err := os.ReadDir(filepath.Join(target, old))
	if err == nil && len(left) > 0 {
		err = errShown
	}
	if err != nil {
		return cannot(err, "hide files of a layer")
	}
	return nil
}

// refusals are the errors with which a file system, or the kernel for it, refuses what overlays need: its directories, devices
// as deletions, and attributes of its files. All others may be of this start alone: a kernel whose modules were replaced before
// a reboot (ENODEV), a bad disk (EIO, EROFS), a server that is away (ESTALE, ETIMEDOUT), a full host.
func refusals() []error {
	return []error{unix.EINVAL, unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS, unix.EXDEV, unix.ELOOP}
}

// errShown is that of an overlay that shows what it must hide.
var errShown = errors.New("files of a directory that was replaced are there")

// cannot gives the error of a probe its kind: Unsupported if it is a refusal, else none.
func cannot(err error, what string) error {
	if !errors.Is(err, errShown) && !slices.ContainsFunc(refusals(), func(refusal error) bool { return errors.Is(err, refusal) }) {
		return err
	}
	var at *os.PathError
	if errors.As(err, &at) { // a directory that is gone says nothing
		err = at.Err
	}
	return fmt.Errorf("its file system cannot %s: %w: %w", what, err, errs.Unsupported)
}

package unpack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readOnly opens a layer again for the child, which has the capabilities to change the owner, the mode and the times of a file
// that it can only read. So a regular file comes from a read-only mount that nothing else sees. Where the kernel has no such
// mounts (before 5.12), and for other files, it is the same open file. The caller closes what is returned, beside layer.
func readOnly(layer *os.File) (*os.File, error) {
	info, err := layer.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot look at a layer: %w", err)
	}
	offset, err := layer.Seek(0, io.SeekCurrent)
	if err != nil || !info.Mode().IsRegular() {
		return duplicate(layer)
	}
	tree, err := unix.OpenTree(int(layer.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		defer unix.Close(tree)
		attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC}
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes)
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // EINVAL: a file of no mount of ours, such as one in memory
		return duplicate(layer)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a read-only mount of a layer: %w", err)
	}
	file, err := os.Open(fmt.Sprint("/proc/self/fd/", tree))
	if err != nil {
		return nil, fmt.Errorf("cannot open a layer again: %w", err)
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open a layer again: %w", err), file.Close())
	}
	return file, nil
}

func duplicate(layer *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(layer.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot duplicate a layer: %w", err)
	}
	return os.NewFile(uintptr(fd), layer.Name()), nil
}

// isSmall reports whether a layer is a file of at most smallLayer bytes.
func isSmall(layer *os.File) bool {
	info, err := layer.Stat()
	return err == nil && info.Mode().IsRegular() && info.Size() <= smallLayer
}

// watch reports the file's offset to read. The child shares the offset, and may set it to more than the size of the file.
func watch(layer *os.File, read func(int64)) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				offset, err1 := layer.Seek(0, io.SeekCurrent)
				info, err2 := layer.Stat()
				if err1 == nil && err2 == nil {
					read(min(offset, info.Size()))
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}

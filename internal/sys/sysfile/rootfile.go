package sysfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// ReadInRoot reads at most limit bytes of the regular file path of a root
// filesystem with untrusted content. Links are resolved inside root, and only
// regular files are opened. Kind NotFound when there is no such file,
// Invalid when it is something else.
func ReadInRoot(root, path string, limit int64) ([]byte, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the root filesystem %s: %w", root, err)
	}
	defer unix.Close(dir)
	fd, err := openInRoot(dir, path, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%s of the image: %w", path, errs.NotFound)
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil, fmt.Errorf("cannot open %s of the image: %w: %w", path, errs.Invalid, err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open %s of the image: %w", path, err)
	}
	defer unix.Close(fd)
	data, err := readRegular(fd, limit)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of the image: %w", path, err)
	}
	return data, nil
}

// DirInRoot returns the path of the directory path in a root filesystem without
// writers. Links are resolved inside root. Kind NotFound when there is no such
// directory, Invalid when it is something else.
func DirInRoot(root, path string) (string, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("cannot open the root filesystem %s: %w", root, err)
	}
	defer unix.Close(dir)
	if path == "" {
		return root, nil
	}
	fd, err := openInRoot(dir, path, unix.O_DIRECTORY)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "", fmt.Errorf("%s of the image: %w", path, errs.NotFound)
	case errors.Is(err, unix.ENOTDIR):
		return "", fmt.Errorf("%s of the image is not a directory: %w", path, errs.Invalid)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
		return "", fmt.Errorf("cannot open %s of the image: %w: %w", path, errs.Invalid, err)
	case err != nil:
		return "", fmt.Errorf("cannot open %s of the image: %w", path, err)
	}
	defer unix.Close(fd)
	// Both without links: root's own path may have some.
	top, err1 := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir))
	found, err2 := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err := errors.Join(err1, err2); err != nil {
		return "", fmt.Errorf("cannot find out where %s of the image is: %w", path, err)
	}
	below, err := filepath.Rel(top, found)
	if err != nil || !filepath.IsLocal(below) {
		return "", fmt.Errorf("%s of the image leads to %s, out of it: %w", path, found, errs.Invalid)
	}
	return filepath.Join(root, below), nil
}

// openInRoot returns a descriptor that stands for the file and does not open it.
func openInRoot(dir int, path string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err = unix.Openat2(dir, path, &how)
		// EAGAIN: while ".." was followed something was renamed or mounted,
		// anywhere; the kernel asks to try again.
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// ReadRegular reads at most limit bytes of the regular file path. Kind NotFound
// when there is no such file, Invalid when it is something else.
func ReadRegular(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%s: %w", path, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	defer unix.Close(fd)
	data, err := readRegular(fd, limit)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return data, nil
}

// readRegular reads the file behind an O_PATH descriptor, once it is known to be
// one: opening a FIFO would wait, opening a device may do anything.
func readRegular(fd int, limit int64) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("it is not a regular file: %w", errs.Invalid)
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// ReadFile is os.ReadFile for regular files of at most limit bytes. It does not open anything else: opening a named pipe waits
// for a writer. All its errors are fs.PathErrors.
func ReadFile(path string, limit int64) ([]byte, error) {
	data, err := readPlain(path, limit)
	if err == nil {
		return data, nil
	}
	var inner *fs.PathError // of the file's name below /proc
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return nil, &fs.PathError{Op: "read", Path: path, Err: err}
}

func readPlain(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil, unix.EISDIR
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("is not a regular file")
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("has more than %d bytes", limit)
	}
	return data, err
}

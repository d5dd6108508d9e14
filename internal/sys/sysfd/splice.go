package sysfd

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// SplicePipe moves up to n bytes from a pipe to offset off of a file, without
// waiting. It returns 0 and no error when the pipe is empty and has no writers, and
// an error that is EAGAIN when it is only empty. Bytes taken from the pipe are in the
// file, also if the process is killed in the call.
func SplicePipe(file *os.File, off int64, pipe *os.File, n int) (int, error) {
	for {
		moved, err := unix.Splice(int(pipe.Fd()), nil, int(file.Fd()), &off, n, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		switch {
		case err == nil:
			return int(moved), nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return 0, unix.EAGAIN
		}
		return 0, fmt.Errorf("cannot splice from a pipe to %s: %w", file.Name(), err)
	}
}

// PipeBuffered returns how many bytes wait in a pipe.
func PipeBuffered(pipe *os.File) (int, error) {
	n, err := unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ)
	if err != nil {
		return 0, fmt.Errorf("cannot ask how full a pipe is: %w", err)
	}
	return n, nil
}

// PunchHole frees the space of [off, off+n) of a file; it reads as zeros.
func PunchHole(file *os.File, off, n int64) error {
	if err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n); err != nil {
		return fmt.Errorf("cannot punch a hole into %s: %w", file.Name(), err)
	}
	return nil
}

// MapShared maps the first n bytes of a file for reading and writing. The file
// must have them allocated, else a full file system kills the process at the
// first touch.
func MapShared(file *os.File, n int) ([]byte, error) {
	page, err := unix.Mmap(int(file.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map %s: %w", file.Name(), err)
	}
	return page, nil
}

// Unmap undoes MapShared.
func Unmap(page []byte) error {
	if err := unix.Munmap(page); err != nil {
		return fmt.Errorf("cannot unmap a file: %w", err)
	}
	return nil
}

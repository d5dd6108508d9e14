package sysfd

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Allocate makes a file at least n bytes long, with space for all of them.
func Allocate(file *os.File, n int64) error {
	for {
		// Go's own signals interrupt it.
		err := unix.Fallocate(int(file.Fd()), 0, 0, n)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot allocate %d bytes for %s: %w", n, file.Name(), err)
		}
		return nil
	}
}

// MapTwice maps the first n bytes of a file for reading and writing, two times in a row: byte i and
// byte n+i are the same. n is a multiple of the size of a page, and allocated: see MapShared. A part
// of a ring that goes beyond its end is contiguous in such a mapping.
func MapTwice(file *os.File, n int) ([]byte, error) {
	size := uintptr(n)
	base, err := unix.MmapPtr(-1, 0, nil, 2*size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("cannot reserve addresses for %s: %w", file.Name(), err)
	}
	for _, at := range []unsafe.Pointer{base, unsafe.Add(base, size)} {
		_, err := unix.MmapPtr(int(file.Fd()), 0, at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_POPULATE)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot map %s: %w", file.Name(), err), unix.MunmapPtr(base, 2*size))
		}
	}
	return unsafe.Slice((*byte)(base), 2*n), nil
}

// UnmapTwice undoes MapTwice.
func UnmapTwice(mem []byte) error {
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))); err != nil {
		return fmt.Errorf("cannot unmap a file: %w", err)
	}
	return nil
}

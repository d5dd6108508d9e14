package sysfd

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// NewMemfd makes an anonymous file in memory, close-on-exec.
func NewMemfd(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// CloseOnExecFrom sets close-on-exec on every descriptor from first on.
func CloseOnExecFrom(first int) error {
	if unix.CloseRange(uint(first), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	// A kernel before 5.11: one by one. The directory's own descriptor is among
	// them and already closed when its turn comes.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("cannot list the open descriptors: %w", err)
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// FileFD returns the number of f's descriptor without changing its mode. It is
// valid while f is open: keep f alive.
func FileFD(f *os.File) (int, error) {
	number := -1
	err := With(f, func(fd int) error { number = fd; return nil })
	if err != nil {
		return -1, fmt.Errorf("cannot use %s: %w", f.Name(), err)
	}
	return number, nil
}

// CountFDs returns how many descriptors this process has open and how many it may
// have. Without one left to count them with, all are in use.
func CountFDs() (open, limit int, err error) {
	var rlimit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &rlimit); err != nil {
		return 0, 0, fmt.Errorf("cannot read the limit of descriptors: %w", err)
	}
	limit = int(min(rlimit.Cur, 1<<30))
	// The kernel has the number as the directory's size since 6.2. A list of them would take longer
	// with each container that a process holds descriptors of.
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/fd", &st); err == nil && st.Size > 0 {
		return int(st.Size), limit, nil
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) {
		return limit, limit, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("cannot list the open descriptors: %w", err)
	}
	return len(entries), limit, nil
}

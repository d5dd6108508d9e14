package sysproc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// FindPipe opens the pipe with the given id through a process that holds it, with
// an open file description of its own. access is os.O_RDONLY, os.O_WRONLY or
// os.O_RDWR. NotFound if the process is gone or holds it no more.
//
// The process may be hostile and exchange its descriptors meanwhile. So FindPipe
// copies a descriptor, looks at the copy, and opens nothing of the process by path:
// to open a device, a FIFO or a file on a dead file system has effects or hangs.
//
// It may also have a million of them, so that they are not listed at once.
func FindPipe(pid int, id uint64, access int) (*os.File, error) {
	var found *os.File
	err := findHeld(pid, id, func(held *os.File) (ok bool) {
		f, err := sysfd.ReopenPipe(held, access)
		found = f
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// ReadsPipe returns nil if a process has the pipe with the given id open for reading, and NotFound if not. A descriptor
// with O_PATH does not count: the kernel sees no reader in it. See FindPipe for a hostile process.
func ReadsPipe(pid int, id uint64) error {
	return findHeld(pid, id, func(held *os.File) bool {
		flags, err := unix.FcntlInt(held.Fd(), unix.F_GETFL, 0)
		return err == nil && flags&unix.O_PATH == 0 && flags&unix.O_ACCMODE != unix.O_WRONLY
	})
}

// findHeld calls accept with copies of the descriptors of a process that are the pipe with the given id, until it
// returns true. NotFound if it never does, or if the process is gone.
func findHeld(pid int, id uint64, accept func(held *os.File) bool) error {
	dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("process %d: %w", pid, errs.NotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot list the descriptors of process %d: %w", pid, err)
	}
	defer dir.Close()
	want := fmt.Sprintf("pipe:[%d]", id)
	for {
		const batch = 512
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if target, err := os.Readlink(filepath.Join(dir.Name(), name)); err != nil || target != want {
				continue
			}
			fd, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if takePipe(pid, fd, id, accept) {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH):
			return fmt.Errorf("pipe %d in process %d: %w", id, pid, errs.NotFound)
		case err != nil:
			return fmt.Errorf("cannot list the descriptors of process %d: %w", pid, err)
		}
	}
}

// takePipe copies descriptor fd of a process, makes sure that it is the pipe id, and calls accept with it.
func takePipe(pid, fd int, id uint64, accept func(held *os.File) bool) bool {
	held, err := TakeFD(pid, fd)
	if err != nil {
		return false
	}
	defer held.Close()
	got, err := sysfd.PipeID(held)
	return err == nil && got == id && accept(held)
}

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
	dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("process %d: %w", pid, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the descriptors of process %d: %w", pid, err)
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
			if f, err := takePipe(pid, fd, id, access); err == nil {
				return f, nil
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH):
			return nil, fmt.Errorf("pipe %d in process %d: %w", id, pid, errs.NotFound)
		case err != nil:
			return nil, fmt.Errorf("cannot list the descriptors of process %d: %w", pid, err)
		}
	}
}

// takePipe copies descriptor fd of a process, makes sure that it is the pipe id, and
// opens that pipe.
func takePipe(pid, fd int, id uint64, access int) (*os.File, error) {
	held, err := TakeFD(pid, fd)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	got, err := sysfd.PipeID(held)
	if err != nil {
		return nil, err
	}
	if got != id {
		return nil, fmt.Errorf("descriptor %d of process %d is pipe %d, not %d: %w", fd, pid, got, id, errs.NotFound)
	}
	return sysfd.ReopenPipe(held, access)
}

package finish

import (
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
)

// Exec executes the program that Become has found. It returns only on error. It closes all
// descriptors but 0 to 2, also those that are close-on-exec: the program's path could name one of
// them, and lead to a file of the host. keep, when it is not negative, is a close-on-exec
// descriptor for the caller to report the error on; the program cannot be found through it, since it
// is a socket.
func (p *Process) Exec(keep int) error {
	if err := closeFrom(3, keep); err != nil {
		return failure.New(failure.OfHost, "", "cannot close descriptors: %w", err)
	}
	for {
		err := syscall.Exec(p.program, p.Args, p.Env)
		if err != syscall.EINTR {
			return failure.New(failure.OfProgram, p.Args[0], "exec %s: %w", p.program, err)
		}
	}
}

// closeFrom closes all descriptors from first on but keep. Nothing of Go's may use one afterwards.
func closeFrom(first, keep int) error {
	if keep < first {
		return unix.CloseRange(uint(first), math.MaxUint32, 0)
	}
	if keep > first {
		if err := unix.CloseRange(uint(first), uint(keep-1), 0); err != nil {
			return err
		}
	}
	return unix.CloseRange(uint(keep+1), math.MaxUint32, 0)
}

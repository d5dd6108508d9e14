package sysfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// NewTerminal wraps the master of a pty that came from elsewhere, and takes it
// over, also on error. It sets O_NONBLOCK, which all duplicates share.
func NewTerminal(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot make a terminal non-blocking: %w", err)
	}
	return os.NewFile(uintptr(fd), "terminal"), nil
}

// ResizeTerminal sets the size of a pty; its foreground processes get SIGWINCH.
func ResizeTerminal(terminal *os.File, width, height uint16) error {
	err := With(terminal, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	})
	if err != nil {
		return fmt.Errorf("cannot resize a terminal: %w", err)
	}
	return nil
}

// CopyTerminal copies the output of a pty into a pipe, whose writing end it takes
// over. It blocks no thread while there is no output or no room. Bytes taken from
// the pty are in the pipe, also if the process is killed in between. It returns nil
// when ctx ends, or when no process has the other side of the pty open and all
// output is copied.
func CopyTerminal(ctx context.Context, terminal, pipe *os.File) error {
	to, err := Pollable(pipe)
	if err != nil {
		return err
	}
	defer to.Close()
	for {
		full := false
		var moveErr error
		err := Await(ctx, nil, terminal, func(fd int) bool {
			full, moveErr = moveTerminal(fd, to)
			return full || moveErr != nil
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("cannot wait on a terminal: %w", err)
		case errors.Is(moveErr, unix.EIO), errors.Is(moveErr, errNothing):
			return nil
		case moveErr != nil:
			return fmt.Errorf("cannot read a terminal: %w", moveErr)
		}
		if err := awaitRoom(ctx, to); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("cannot wait on a pipe: %w", err)
		}
	}
}

var errNothing = errors.New("end of terminal")

// moveTerminal moves until the terminal is empty (false), or the pipe is full.
func moveTerminal(fd int, to *os.File) (full bool, err error) {
	for {
		var n int64
		err := With(to, func(pipe int) error {
			var err error
			n, err = unix.Splice(fd, nil, pipe, nil, 64<<10, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			return err
		})
		switch {
		case err == nil && n == 0:
			return false, errNothing
		case err == nil, errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			// Either is the reason. Of a terminal that is empty and closed at the other side, splice reports the end once the
			// pipe has room: no event of the terminal follows.
			return polled(fd)&(unix.POLLIN|unix.POLLHUP) != 0, nil
		case errors.Is(err, unix.EINVAL):
			return copyTerminal(fd, to)
		default:
			return false, err
		}
	}
}

// copyTerminal is for kernels whose ptys cannot be spliced (before 5.11).
func copyTerminal(fd int, to *os.File) (full bool, err error) {
	// A pipe that takes PIPE_BUF bytes at all takes them at once.
	const chunk = 4096
	buf := make([]byte, chunk)
	for {
		if !hasRoom(to) {
			return true, nil
		}
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil:
			return false, err
		case n == 0:
			return false, errNothing
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return false, err
		}
	}
}

func awaitRoom(ctx context.Context, pipe *os.File) error {
	if err := pipe.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		if err := pipe.SetWriteDeadline(time.Unix(1, 0)); err != nil {
			return // closed: no call waits
		}
	})
	defer stop()
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Write(func(uintptr) bool { return hasRoom(pipe) })
}

func hasRoom(pipe *os.File) bool {
	set := []unix.PollFd{{Events: unix.POLLOUT}}
	err := With(pipe, func(fd int) error {
		set[0].Fd = int32(fd)
		_, err := unix.Poll(set, 0)
		return err
	})
	return err == nil && set[0].Revents != 0
}

// Pollable returns f, which it takes over, as a file whose reads and writes park a
// goroutine and no thread. The mode is shared by all who hold the same open file.
func Pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	if err := With(f, func(fd int) error { return unix.SetNonblock(fd, true) }); err != nil {
		return nil, fmt.Errorf("cannot make %s non-blocking: %w", f.Name(), err)
	}
	return Duplicate(f)
}

// Duplicate returns another descriptor of the same open file.
func Duplicate(f *os.File) (*os.File, error) {
	fd := -1
	err := With(f, func(old int) (err error) {
		fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot duplicate %s: %w", f.Name(), Exhausted(err))
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

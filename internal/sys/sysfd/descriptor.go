package sysfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// With runs do with the descriptor of f, which stays open meanwhile. Unlike
// f.Fd it never changes the blocking mode. os.ErrClosed when f is closed.
func With(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	if raw.Control(func(fd uintptr) { doErr = do(int(fd)) }) != nil {
		return os.ErrClosed // it has no other reason to fail, but its error does not say so
	}
	return doErr
}

var errStopped = errors.New("wait was stopped")

// Await calls try each time when f may have become readable, until try returns
// true, ctx ends (its error), or stop is closed (errStopped). One Await on an
// *os.File at a time.
func Await(ctx context.Context, stop <-chan struct{}, f *os.File, try func(fd int) bool) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("cannot wait on %s: %w", f.Name(), err)
	}
	done, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
		case <-stop:
		case <-done:
			return
		}
		if err := f.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return // closed: no call waits
		}
	}()
	err = raw.Read(func(fd uintptr) bool { return try(int(fd)) })
	close(done)
	<-watched
	if resetErr := f.SetReadDeadline(time.Time{}); resetErr != nil && err == nil {
		err = resetErr
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errStopped
	}
	return err
}

// Exhausted adds the kind Exhausted where a table of the kernel is full.
func Exhausted(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("%w (%w)", err, errs.Exhausted)
	}
	return err
}

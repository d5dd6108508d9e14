package sysfd

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// FDSocket makes a socket pair on which a child sends one descriptor: sender goes
// to the child.
func FDSocket() (receiver, sender *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a socket pair: %w", Exhausted(err))
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		CloseFDs(fds[:])
		return nil, nil, fmt.Errorf("cannot make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "fd-socket"), os.NewFile(uintptr(fds[1]), "fd-socket"), nil
}

// PeekFD returns a duplicate of the descriptor that was sent and leaves the
// message in the socket, so that a process with another duplicate of receiver can
// do the same later. It waits until something was sent. Kind NotFound when the
// last sender is gone and has sent nothing.
func PeekFD(ctx context.Context, receiver *os.File) (fd int, err error) {
	fd = -1
	waitErr := Await(ctx, nil, receiver, func(sock int) bool {
		fd, err = peekFD(sock)
		return !errors.Is(err, unix.EAGAIN)
	})
	if waitErr != nil {
		return -1, waitErr
	}
	return fd, err
}

func peekFD(sock int) (int, error) {
	buf := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case errors.Is(err, unix.EINTR):
		return -1, unix.EAGAIN
	case errors.Is(err, unix.EAGAIN):
		return -1, err
	case err != nil:
		return -1, fmt.Errorf("cannot receive a descriptor: %w", err)
	}
	fds, err := parseRights(oob[:oobn])
	if err != nil {
		return -1, fmt.Errorf("cannot receive a descriptor: %w", err)
	}
	if len(fds) == 1 {
		return fds[0], nil
	}
	CloseFDs(fds)
	if n == 0 {
		return -1, fmt.Errorf("descriptor from a process that has ended: %w", errs.NotFound)
	}
	return -1, fmt.Errorf("message has %d descriptors, not one: %w", len(fds), errs.Invalid)
}

// AwaitReadable waits until f, in non-blocking mode, has something to read, and
// takes nothing. False when stop is closed first.
func AwaitReadable(ctx context.Context, f *os.File, stop <-chan struct{}) (bool, error) {
	has := false
	err := Await(ctx, stop, f, func(fd int) bool {
		has = hasInput(fd)
		return has
	})
	if errors.Is(err, errStopped) {
		return HasInput(f) // both may have come at once
	}
	return has, err
}

// HasInput reports whether f has something to read, and takes nothing.
func HasInput(f *os.File) (has bool, err error) {
	err = With(f, func(fd int) error { has = hasInput(fd); return nil })
	return has, err
}

func hasInput(fd int) bool { return polled(fd)&unix.POLLIN != 0 }

// polled returns which of POLLIN, POLLHUP and POLLERR hold for fd.
func polled(fd int) int16 {
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(set, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n != 1 {
			return 0
		}
		return set[0].Revents
	}
}

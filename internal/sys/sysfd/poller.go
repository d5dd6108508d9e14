package sysfd

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Poller waits for many descriptors with one thread. Each time a descriptor is
// armed it is reported once, when it is readable or its other side is gone.
// All methods but Wait are safe for concurrent use.
type Poller struct {
	epoll int
	wake  int
}

// wakeToken is the token of the poller's own descriptor.
const wakeToken = 0

// NewPoller makes a poller without descriptors.
func NewPoller() (*Poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make an epoll descriptor: %w", Exhausted(err))
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make an event descriptor: %w", Exhausted(err)), unix.Close(epoll))
	}
	p := &Poller{epoll: epoll, wake: wake}
	if err := p.control(unix.EPOLL_CTL_ADD, wake, wakeToken, unix.EPOLLIN); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Add registers and arms a descriptor. token is not 0 and comes back from Wait.
func (p *Poller) Add(f *os.File, token uint64) error {
	return p.controlFile(unix.EPOLL_CTL_ADD, f, token, unix.EPOLLIN|unix.EPOLLONESHOT)
}

// Arm asks for one more report. What is readable already is reported at once.
func (p *Poller) Arm(f *os.File, token uint64) error {
	return p.controlFile(unix.EPOLL_CTL_MOD, f, token, unix.EPOLLIN|unix.EPOLLONESHOT)
}

// Remove removes a descriptor. Closing it does not: the poller would still report a
// duplicate that another process holds.
func (p *Poller) Remove(f *os.File) error {
	return p.controlFile(unix.EPOLL_CTL_DEL, f, 0, 0)
}

// controlFile does not change the mode of f.
func (p *Poller) controlFile(op int, f *os.File, token uint64, events uint32) error {
	return With(f, func(fd int) error { return p.control(op, fd, token, events) })
}

func (p *Poller) control(op, fd int, token uint64, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(uint32(token)), Pad: int32(uint32(token >> 32))}
	if err := unix.EpollCtl(p.epoll, op, fd, &event); err != nil {
		return fmt.Errorf("cannot change an epoll set: %w", err)
	}
	return nil
}

// Wait blocks until a descriptor has something to report or Wake is called, and
// returns the tokens of those that do, in the room that tokens gives.
func (p *Poller) Wait(tokens []uint64) ([]uint64, error) {
	var events [64]unix.EpollEvent
	room := min(len(events), cap(tokens))
	for {
		n, err := unix.EpollWait(p.epoll, events[:room], -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot wait for events: %w", err)
		}
		tokens = tokens[:0]
		for _, event := range events[:n] {
			token := uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32
			if token == wakeToken {
				p.drainWake()
				continue
			}
			tokens = append(tokens, token)
		}
		return tokens, nil
	}
}

// Wake makes one Wait return.
func (p *Poller) Wake() error {
	if _, err := unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("cannot wake a poller: %w", err)
	}
	return nil
}

func (p *Poller) drainWake() {
	// It fails only if there is nothing to drain.
	_, _ = unix.Read(p.wake, make([]byte, 8))
}

// Close frees the poller. No Wait may be under way.
func (p *Poller) Close() error {
	return errors.Join(unix.Close(p.wake), unix.Close(p.epoll))
}

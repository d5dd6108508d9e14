package fork

// See enter.c for the process that is started first.

import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// enterEnv has enter.c act. The descriptor after Socket is that of the PID namespace, or of a process in
// it.
const enterEnv = "BERTH_ENTER_PID_NAMESPACE=1"

// What enter.c reports.
const (
	entered = iota
	notJoined
	notForked
)

// enterTimeout bounds the wait for enter.c, which makes a few system calls.
const enterTimeout = 10 * time.Second

// awaitEntered replaces the process that was started, which ends, by the child that it has forked into the
// PID namespace.
func (c *Child) awaitEntered() error {
	outside := &Child{Pid: c.Pid, Pidfd: c.Pidfd, Conn: c.Conn}
	message := make([]byte, 8)
	err := c.Conn.SetReadDeadline(time.Now().Add(enterTimeout))
	if err == nil {
		_, err = io.ReadFull(c.Conn, message)
	}
	if err == nil {
		err = c.Conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		outside.Kill()
		return fmt.Errorf("cannot hear of a child that enters a PID namespace: %w", err)
	}
	what, value := binary.NativeEndian.Uint32(message), int(int32(binary.NativeEndian.Uint32(message[4:])))
	switch what {
	case entered:
		// It is our child, and not reaped: the pid is its own.
		c.Pid = value
		c.Pidfd, err = sysproc.OpenPidfd(value)
	case notJoined:
		err = fmt.Errorf("cannot join a PID namespace: %w", &JoinError{syscall.Errno(value)})
	case notForked:
		err = fmt.Errorf("cannot start a child in a PID namespace: %w", errs.OfFork(syscall.Errno(value)))
	default:
		err = errors.New("a child that enters a PID namespace has sent nonsense")
	}
	outside.reap()
	if err != nil {
		c.Conn.Close()
	}
	return err
}

// splitPID returns the namespaces to join before the fork, and the one whose PID namespace enter.c joins.
func splitPID(join []Namespace) (before []Namespace, pid *Namespace) {
	for _, ns := range join {
		if ns.Kind&unix.CLONE_NEWPID != 0 {
			pid = &Namespace{File: ns.File, Kind: unix.CLONE_NEWPID}
			ns.Kind &^= unix.CLONE_NEWPID
		}
		if ns.Kind != 0 {
			before = append(before, ns)
		}
	}
	return before, pid
}

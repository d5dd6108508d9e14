package fork

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// entrance is what package enter does in the process that is started first. A nil file is none.
type entrance struct {
	// pid and user are a PID namespace and a user namespace to enter, or processes in them.
	pid, user *os.File
	// make are the flags of the namespaces to make in the user namespace.
	make uintptr
}

// needed reports whether package enter has anything to do.
func (e *entrance) needed() bool { return e.pid != nil || e.user != nil }

// order adds to a start what has package enter act. The descriptors come after those that are there.
func (e *entrance) order(attr *syscall.ProcAttr, t *table) {
	number := func(f *os.File) int {
		if f == nil {
			return -1
		}
		attr.Files = append(attr.Files, uintptr(t.of(f)))
		return len(attr.Files) - 1
	}
	attr.Env = append(attr.Env, fmt.Sprintf("BERTH_ENTER=%d %d %d", number(e.pid), number(e.user), e.make))
}

// What package enter reports.
const (
	entered = iota
	notJoined
	notForked
)

// enterTimeout bounds the wait for package enter, which makes a few system calls.
const enterTimeout = 10 * time.Second

// awaitEntered replaces the process that was started, which ends, by the child that it has forked into the
// namespaces.
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
		return fmt.Errorf("cannot hear of a child that enters namespaces: %w", err)
	}
	what, value := binary.NativeEndian.Uint32(message), int(int32(binary.NativeEndian.Uint32(message[4:])))
	switch what {
	case entered:
		// It is our child, and not reaped: the pid is its own.
		c.Pid = value
		c.Pidfd, err = sysproc.OpenPidfd(value)
	case notJoined:
		err = fmt.Errorf("cannot join a PID or user namespace: %w", &JoinError{syscall.Errno(value)})
	case notForked:
		err = fmt.Errorf("cannot start a child in its namespaces: %w", errs.OfFork(syscall.Errno(value)))
	default:
		err = errors.New("a child that enters namespaces has sent nonsense")
	}
	outside.reap()
	if err != nil {
		c.Conn.Close()
	}
	return err
}

// splitPID returns the namespaces to join before the fork, and a file of the PID namespace that enter.c
// joins, or nil.
func splitPID(join []Namespace) (before []Namespace, pid *os.File) {
	for _, ns := range join {
		if ns.Kind&unix.CLONE_NEWPID != 0 {
			pid = ns.File
			ns.Kind &^= unix.CLONE_NEWPID
		}
		if ns.Kind != 0 {
			before = append(before, ns)
		}
	}
	return before, pid
}

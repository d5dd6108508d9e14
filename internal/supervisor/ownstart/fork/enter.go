package fork

import (
	"context"
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
	// cgroup is a directory of cgroup v2 to be born in.
	cgroup *os.File
	// make are the flags of the namespaces to make, in the user namespace if there is one.
	make uintptr
}

// order adds to a start what has package enter act. The descriptors come after those that are there.
func (e *entrance) order(attr *syscall.ProcAttr, t *table) {
	number := func(f *os.File) int {
		if f == nil {
			return -1
		}
		attr.Files = append(attr.Files, uintptr(t.of(f)))
		return len(attr.Files) - 1
	}
	attr.Env = append(attr.Env, fmt.Sprintf("BERTH_ENTER=%d %d %d %d", number(e.pid), number(e.user), number(e.cgroup), e.make))
}

// What package enter reports.
const (
	entered = iota
	notJoined
	notForked
	moved
)

// enterTimeout bounds the wait for package enter, which makes a few system calls.
const enterTimeout = 10 * time.Second

// awaitEntered replaces the process that was started, which ends, by the child that it has forked into the
// namespaces and the cgroup. There may be another process in between. The error is ctx.Err() when ctx ends first.
func (c *Child) awaitEntered(ctx context.Context) error {
	err := c.Conn.SetReadDeadline(time.Now().Add(enterTimeout))
	stop := context.AfterFunc(ctx, func() {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // it fails on a closed socket only
	})
	for done := false; err == nil && !done; {
		done, err = c.follow()
	}
	if !stop() {
		err = ctx.Err()
	}
	if err == nil {
		err = c.Conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		c.Kill()
	}
	return err
}

// follow replaces the process by the one that it reports. It is done when that one has entered.
func (c *Child) follow() (done bool, err error) {
	message := make([]byte, 8)
	if _, err := io.ReadFull(c.Conn, message); errors.Is(err, os.ErrDeadlineExceeded) {
		return false, fmt.Errorf("a child has not entered its namespaces for %s, its cgroup may be frozen: %w", enterTimeout, errs.Unavailable)
	} else if errors.Is(err, io.EOF) {
		return false, errors.New("a child has ended before it had entered its namespaces")
	} else if err != nil {
		return false, fmt.Errorf("cannot hear of a child that enters namespaces: %w", err)
	}
	what, value := binary.NativeEndian.Uint32(message), int(int32(binary.NativeEndian.Uint32(message[4:])))
	switch what {
	case entered, moved:
	case notJoined:
		return false, fmt.Errorf("cannot join a PID or user namespace: %w", &JoinError{syscall.Errno(value)})
	case notForked:
		return false, fmt.Errorf("cannot start a child in its namespaces: %w", errs.OfFork(syscall.Errno(value)))
	default:
		return false, errors.New("a child that enters namespaces has sent nonsense")
	}
	// It is our child, and not reaped: the pid is its own.
	next, err := sysproc.OpenPidfd(value)
	if err != nil {
		return false, err
	}
	outside := &Child{Pid: c.Pid, Pidfd: c.Pidfd, Conn: c.Conn}
	c.Pid, c.Pidfd = value, next
	outside.reap()
	return what == entered, nil
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

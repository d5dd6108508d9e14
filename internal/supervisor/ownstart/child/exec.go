package child

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// exec has the steps of an exec in their order. It returns only on error. The supervisor sees the
// socket close at the execve: until then it gets the error.
func exec() error {
	b, fds, err := receive()
	if err != nil {
		return err
	}
	e, err := order.DecodeExec(b)
	if err != nil {
		return err
	}
	for _, n := range e.Descriptors() {
		if *n >= len(fds) {
			return fmt.Errorf("the order has descriptor %d of %d", *n, len(fds))
		}
		if *n >= 0 {
			*n = fds[*n]
		}
	}
	if err := joinCgroups(e.Tasks); err != nil {
		return err
	}
	// A successor of a supervisor that has ended kills what is in the cgroup, perhaps before this
	// process was in it.
	if err := checkSupervisor(); err != nil {
		return err
	}
	if err := enterContainer(e); err != nil {
		return err
	}
	proc := finish.Procfs(e.Proc)
	if e.Console >= 0 {
		if err := execTerminal(e); err != nil {
			return failure.New(failure.OfHost, "", "cannot make a terminal: %w", err)
		}
	}
	if err := e.Process.Prepare(proc); err != nil {
		return err
	}
	// As late as possible: with the pidfd, a successor takes the command for one that has begun.
	if err := sendPidfd(e.Pidfd); err != nil {
		return err
	}
	if err := e.Process.Become(proc, order.Socket); err != nil {
		return err
	}
	return e.Process.Exec(order.Socket)
}

// enterContainer joins the mount namespace of the container, with its root, and its cgroup namespace.
func enterContainer(e *order.Exec) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cannot leave the root of the other threads: %w", err)
	}
	if e.Join != 0 {
		if err := unix.Setns(e.Init, e.Join); err != nil {
			return fmt.Errorf("cannot join namespaces %#x of the container: %w", e.Join, err)
		}
	}
	for _, fd := range e.Spaces {
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("cannot join a namespace of the container: %w", err)
		}
	}
	return nil
}

// execTerminal makes a terminal in the container.
func execTerminal(e *order.Exec) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	c := &container{
		Create: &order.Create{Console: e.Console, Width: e.Width, Height: e.Height},
		proc:   finish.Procfs(e.Proc),
		root:   root,
	}
	return c.openTerminal(false)
}

// sendPidfd sends a pidfd of this process to whichever supervisor is there, unless the one that
// started it has ended: its successor may run the command again.
func sendPidfd(socket int) error {
	if socket < 0 {
		return nil
	}
	if err := checkSupervisor(); err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("cannot open a pidfd: %w", err)
	}
	defer unix.Close(pidfd)
	if err := unix.Sendmsg(socket, []byte("pidfd"), unix.UnixRights(pidfd), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("cannot send a pidfd: %w", err)
	}
	unix.Close(socket)
	return nil
}

// Package child is what runs in a process that the supervisor starts to become a part of a container
// (see package fork). It makes the container around itself as its order says, and becomes the program.
//
// The container's root filesystem and its processes are hostile. A path in the container is looked up
// once, inside of the root (openat2 with RESOLVE_IN_ROOT), and used by descriptor from then on: mounts
// are made detached and moved onto descriptors. Nothing is read or written through the container's /proc.
//
// The package begins before main, on the process's first thread, and imports little: what it does not
// import is not initialised first.
package child

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	_ "github.com/berthrun/berth/internal/supervisor/ownstart/enter" // its C code runs before Go does
	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// Until main begins, and no longer, Go runs on the process's first thread: from no other one does the
// kernel take the SELinux label of a keyring, and an execve on it ends all others.
func init() { //nolint:gochecknoinits // see above
	if len(os.Args) != 2 {
		return
	}
	switch os.Args[1] {
	case order.RoleCreate:
		os.Exit(run(create))
	case order.RoleExec:
		os.Exit(run(exec))
	}
}

// exitFailed is the code of a child that does not become the program, as of libcontainer's. The supervisor that started it has
// the error. One that has adopted it since knows by this code alone that the program may not have run.
const exitFailed = 255

// programsTimerSlack is the kernel's default, in nanoseconds. This thread has the timer slack of the supervisor (see
// package timerslack), and the program would inherit it.
const programsTimerSlack = 50_000

// run returns when the child has failed at a step.
func run(steps func() error) (code int) {
	// A container that shares the PID namespace sees this process.
	protect := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	slack := unix.Prctl(unix.PR_SET_TIMERSLACK, programsTimerSlack, 0, 0, 0)
	unix.CloseOnExec(order.Socket)
	defer func() {
		if p := recover(); p != nil {
			code = report(fmt.Errorf("a fault in berth's init: %v, %s", p, debug.Stack()))
		}
	}()
	if protect != nil {
		return report(fmt.Errorf("cannot protect the process: %w", protect))
	}
	if slack != nil {
		return report(fmt.Errorf("cannot reset the timer slack: %w", slack))
	}
	if err := setName(order.Name); err != nil {
		return report(err)
	}
	// The working directory of all threads is in the host's procfs until now: see package fork.
	if err := unix.Chdir("/"); err != nil {
		return report(fmt.Errorf("cannot leave the host's procfs: %w", err))
	}
	// The supervisor's umask must not change what is made in the container.
	unix.Umask(0)
	return report(steps())
}

// report sends the error of a child.
func report(err error) int {
	if err != errSupervisorEnded { //nolint:errorlint // it is never wrapped
		_ = send(append([]byte{byte(order.Failed)}, failure.From(err).Encode()...)) // fails when the supervisor has ended
	}
	return exitFailed
}

func setName(name string) error {
	b := append([]byte(name), 0)
	if err := unix.Prctl(unix.PR_SET_NAME, pointer(b), 0, 0, 0); err != nil {
		return fmt.Errorf("cannot set the name of the process: %w", err)
	}
	return nil
}

// errSupervisorEnded ends a child whose supervisor has ended: nobody would hear its error.
var errSupervisorEnded = fmt.Errorf("the supervisor has ended")

// send sends a message with its length. A filter that allows the program to write allows this.
func send(message []byte) error {
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(message)))
	b = append(b, message...)
	for len(b) > 0 {
		// Go's runtime catches the signal for a socket without a reader.
		n, err := unix.Write(order.Socket, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return errSupervisorEnded
		}
		b = b[n:]
	}
	return nil
}

// answer sends one answer without more.
func answer(a order.Answer) error { return send([]byte{byte(a)}) }

// receive returns the order, and its descriptors in the order in which they were sent.
func receive() ([]byte, []int, error) {
	head := make([]byte, 4)
	rights := make([]byte, unix.CmsgSpace(maxDescriptors*4))
	n, oobn, flags, _, err := recvmsg(head, rights)
	if err != nil {
		return nil, nil, err
	}
	if n < len(head) || flags&unix.MSG_CTRUNC != 0 {
		return nil, nil, errSupervisorEnded
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil {
		return nil, nil, fmt.Errorf("cannot receive descriptors: %w", err)
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, nil, fmt.Errorf("cannot receive descriptors: %w", err)
		}
		fds = append(fds, got...)
	}
	length := binary.NativeEndian.Uint32(head)
	if length > order.MaxOrder {
		return nil, nil, fmt.Errorf("an order of %d bytes came", length)
	}
	b := make([]byte, length)
	for rest := b; len(rest) > 0; {
		n, err := unix.Read(order.Socket, rest)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return nil, nil, errSupervisorEnded
		}
		rest = rest[n:]
	}
	return b, fds, nil
}

// maxDescriptors is how many descriptors an order has at most.
const maxDescriptors = 64

func recvmsg(b, rights []byte) (n, oobn, flags int, from unix.Sockaddr, err error) {
	for {
		n, oobn, flags, from, err = unix.Recvmsg(order.Socket, b, rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_WAITALL)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			err = errSupervisorEnded
		}
		return n, oobn, flags, from, err
	}
}

// awaitGo waits for the supervisor's byte.
func awaitGo() error {
	b := make([]byte, 1)
	for {
		n, err := unix.Read(order.Socket, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 || b[0] != order.Go {
			return errSupervisorEnded
		}
		return nil
	}
}

// checkSupervisor returns an error when the supervisor has ended.
func checkSupervisor() error {
	fds := []unix.PollFd{{Fd: order.Socket, Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(fds, 0); err == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0 {
		return errSupervisorEnded
	}
	return nil
}

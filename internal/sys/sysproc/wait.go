package sysproc

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// waitInfo is what waitid(2) fills in on Linux: the head of siginfo_t and the
// SIGCHLD member of its union.
type waitInfo struct {
	unix.Siginfo
}

// childInfo is the SIGCHLD member; it begins behind signo, errno and code, at
// the alignment of a pointer.
type childInfo struct {
	pid    int32
	uid    uint32
	status int32
}

func (w *waitInfo) child() *childInfo {
	const head = 3 * unsafe.Sizeof(int32(0))
	const word = unsafe.Sizeof(uintptr(0))
	const offset = (head + word - 1) / word * word
	return (*childInfo)(unsafe.Add(unsafe.Pointer(w), offset))
}

// status is the wait status as wait4(2) returns it.
func (w *waitInfo) status() syscall.WaitStatus {
	const killed, dumped = 2, 3 // CLD_KILLED, CLD_DUMPED
	value := uint32(w.child().status)
	switch w.Code {
	case killed:
		return syscall.WaitStatus(value)
	case dumped:
		return syscall.WaitStatus(value | 0x80)
	}
	return syscall.WaitStatus(value & 0xff << 8)
}

// PeekAnyChild looks for a child of this process, any, that has ended, and leaves
// it a zombie. pid is 0 when none has ended; kind NotFound when there is no child
// at all. Only the keeper may call it: elsewhere other code waits for its own
// children.
func PeekAnyChild() (pid int, status syscall.WaitStatus, err error) {
	info, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	if err != nil {
		return 0, 0, err
	}
	return int(info.child().pid), info.status(), nil
}

// PeekChild returns the status of the child behind pidfd when it has ended (ok)
// and leaves it a zombie, so that the status can be written down before Reap.
// Kind NotFound when it is not a child of this process or was reaped.
func PeekChild(pidfd *os.File) (status syscall.WaitStatus, ok bool, err error) {
	return waitPidfd(pidfd, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
}

// ReapChild is PeekChild, and frees the zombie.
func ReapChild(pidfd *os.File) (status syscall.WaitStatus, ok bool, err error) {
	return waitPidfd(pidfd, unix.WEXITED|unix.WNOHANG)
}

// ReapPid frees the zombie of the child pid. Nil when it was none.
func ReapPid(pid int) error {
	_, err := waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG)
	return errs.IgnoreNotFound(err)
}

func waitPidfd(pidfd *os.File, options int) (status syscall.WaitStatus, ok bool, err error) {
	err = sysfd.With(pidfd, func(fd int) error {
		info, err := waitid(unix.P_PIDFD, fd, options)
		if err == nil {
			status, ok = info.status(), info.child().pid != 0
		}
		return err
	})
	if err != nil || !ok {
		return 0, false, err
	}
	return status, true, nil
}

func waitid(kind, id, options int) (*waitInfo, error) {
	var info waitInfo
	for {
		err := unix.Waitid(kind, id, &info.Siginfo, options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return nil, fmt.Errorf("child process: %w", errs.NotFound)
		case err != nil:
			return nil, fmt.Errorf("cannot wait for a child process: %w", err)
		}
		return &info, nil
	}
}

// ExitCode returns the exit code of a wait status, as shells and CRI have it: the code, or 128 + the
// signal that ended the process.
func ExitCode(status syscall.WaitStatus) int32 {
	if status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(status.ExitStatus())
}

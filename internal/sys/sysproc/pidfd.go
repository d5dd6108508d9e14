package sysproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// OpenPidfd opens a descriptor of the process pid. Kind NotFound when the process
// has ended, Invalid when pid is not positive: a process that is not known has not
// ended. The caller must know that pid is still the process it means: compare
// ReadProc(pid).Start after the open.
func OpenPidfd(pid int) (*os.File, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process %d: not the number of a process: %w", pid, errs.Invalid)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if NoPidfd(err) {
		return nil, fmt.Errorf("process %d: %w", pid, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open a pidfd of process %d: %w", pid, err)
	}
	return NewPidfd(fd)
}

// NoPidfd reports whether an error of pidfd_open(2) without flags means that the process has ended. While the process group or
// the session of a reaped process lives, the error is EINVAL or ENOENT, by the kernel's version; else it is ESRCH.
func NoPidfd(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT)
}

// NewPidfd wraps a pidfd that came from elsewhere and takes it over, also on
// error. It sets O_NONBLOCK, so that AwaitExit parks a goroutine and no thread.
func NewPidfd(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot make a pidfd non-blocking: %w", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// TakeFD returns descriptor fd of the process pid as one of ours: the same open file, with
// its flags and its offset. It opens no file, so it calls no file system.
func TakeFD(pid, fd int) (*os.File, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open a pidfd of process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	taken, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot take descriptor %d of process %d: %w", fd, pid, err)
	}
	return os.NewFile(uintptr(taken), fmt.Sprintf("descriptor %d of process %d", fd, pid)), nil
}

// SignalPidfd sends sig to the process of pidfd. Kind NotFound when it was reaped;
// a zombie takes the signal silently.
func SignalPidfd(pidfd *os.File, sig syscall.Signal) error {
	err := sysfd.With(pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process of a pidfd: %w", errs.NotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot send %v through a pidfd: %w", sig, err)
	}
	return nil
}

// AwaitExit returns nil when the process of pidfd has ended (it may still be a
// zombie), or the error of ctx. pidfd comes from OpenPidfd or NewPidfd. Two
// waits on one *os.File at a time disturb each other's deadline: do not.
func AwaitExit(ctx context.Context, pidfd *os.File) error {
	if err := pidfd.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("cannot wait on a pidfd: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		if err := pidfd.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return // closed: the wait has ended
		}
	})
	defer stop()
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot wait on a pidfd: %w", err)
	}
	err = raw.Read(func(fd uintptr) bool { return readable(int(fd)) })
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("cannot wait on a pidfd: %w", err)
	}
	return nil
}

// PidfdEnded reports, without waiting, whether the process of pidfd has ended.
func PidfdEnded(pidfd *os.File) (bool, error) {
	ended := false
	err := sysfd.With(pidfd, func(fd int) error {
		ended = readable(fd)
		return nil
	})
	return ended, err
}

// PidfdInode returns the inode of a pidfd. Since Linux 6.9 it names one process
// for as long as the machine runs; before, all pidfds share one inode and the
// start time has to do.
func PidfdInode(pidfd *os.File) (uint64, error) {
	var st unix.Stat_t
	err := sysfd.With(pidfd, func(fd int) error { return unix.Fstat(fd, &st) })
	if err != nil {
		return 0, fmt.Errorf("cannot stat a pidfd: %w", err)
	}
	return st.Ino, nil
}

// PidfdPid returns the pid of the process of pidfd. Kind NotFound when it was
// reaped and the kernel no longer has it.
func PidfdPid(pidfd *os.File) (int, error) {
	pid := 0
	err := sysfd.With(pidfd, func(fd int) error {
		return readKeyed(fmt.Sprintf("/proc/self/fdinfo/%d", fd), "Pid:", &pid)
	})
	if err != nil {
		return 0, fmt.Errorf("cannot read the pid of a pidfd: %w", err)
	}
	if pid <= 0 {
		return 0, fmt.Errorf("process of a pidfd: %w", errs.NotFound)
	}
	return pid, nil
}

// PidfdStatus returns the wait status of a reaped process from the kernel, whatever
// its parent. ok is false while the process is not reaped, and always on kernels
// before 6.15.
func PidfdStatus(pidfd *os.File) (status syscall.WaitStatus, ok bool, err error) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err = sysfd.With(pidfd, func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) })
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESRCH):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("cannot ask a pidfd for the exit status: %w", err)
	}
	if info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false, nil
	}
	return syscall.WaitStatus(info.Exit_code), true, nil
}

func readable(fd int) bool {
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(set, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 1
	}
}

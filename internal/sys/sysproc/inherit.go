package sysproc

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CleanSignals undoes what a parent left in the signal state of this process, so
// that its own children do not inherit it: ignored signals are taken (and
// dropped), since a taken one has its default action again after execve; blocked
// ones are freed by executing this program again, since Go hands the mask that it
// began with to every child. It comes first in a process.
func CleanSignals() error {
	for sig := syscall.Signal(1); sig <= rtMax; sig++ {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	for sig := uintptr(firstLibcSignal); sig <= lastLibcSignal; sig++ {
		if err := resetIgnored(sig); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var blocked, none unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, nil, &blocked); err != nil {
		return fmt.Errorf("cannot read the signal mask: %w", err)
	}
	if blocked == none {
		return nil
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil); err != nil {
		return fmt.Errorf("cannot free blocked signals: %w", err)
	}
	err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	return errors.Join(fmt.Errorf("cannot free blocked signals: %w", err), unix.PthreadSigmask(unix.SIG_SETMASK, &blocked, nil))
}

// Signals that C libraries keep for their threads. Go never takes them, so what a
// parent left stays; GNU make leaves them ignored.
const (
	firstLibcSignal = 32
	lastLibcSignal  = 34
)

// resetIgnored gives a signal that is ignored its default action.
func resetIgnored(sig uintptr) error {
	const (
		ignored  = 1 // SIG_IGN
		maskSize = 8
	)
	// The kernel's struct sigaction: handler, flags, restorer, mask. All zero is
	// SIG_DFL.
	var was, plain [4]uint64
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&was)), maskSize, 0, 0)
	if errno == 0 && was[0] == ignored {
		_, _, errno = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&plain)), 0, maskSize, 0, 0)
	}
	if errno != 0 {
		return fmt.Errorf("cannot reset signal %d: %w", sig, errno)
	}
	return nil
}

// timerSlack is the kernel's default: how much later than requested the kernel may end a sleep of a thread.
const timerSlack = 50 * time.Microsecond

// ResetTimerSlack gives this thread the kernel's default timer slack. A process that the thread starts inherits it.
// The caller has locked the goroutine to the thread.
func ResetTimerSlack() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack.Nanoseconds()), 0, 0, 0); err != nil {
		return fmt.Errorf("cannot reset the timer slack: %w", err)
	}
	return nil
}

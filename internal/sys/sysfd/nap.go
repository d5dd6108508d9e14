package sysfd

import (
	"time"

	"golang.org/x/sys/unix"
)

// Nap sleeps for d, which is shorter than a millisecond or two: Go's timers are not so exact. It keeps
// a thread, and a signal may end it early.
func Nap(d time.Duration) {
	length := unix.NsecToTimespec(d.Nanoseconds())
	// The only error is EINTR.
	_ = unix.Nanosleep(&length, nil)
}

// Package timerslack gives the keeper and the supervisor a timer slack of 1 ms. The kernel's default is 50 µs. The
// timer slack is how much later than requested the kernel may end a sleep of a thread (PR_SET_TIMERSLACK in prctl(2)).
//
// A thread of Go's runtime sleeps 20 µs at a time while the program works. With the kernel's default this thread
// causes 41 of 100 context switches of a supervisor that starts execs, and each is expensive in a virtual machine.
// Nothing in these two processes needs a timer that is more exact.
//
// A process inherits the timer slack of the thread that starts it. Processes of containers must have the kernel's
// default: all other roles of berth-supervisor set it here, package child sets it before it executes a program, and
// package hooks before it starts a hook.
//
// The package has only C code: it runs before Go's runtime, which creates that thread first.
package timerslack

import "C"

// Package timerslack gives the keeper and the supervisor a timer slack of 1 ms in place of 50 µs: the kernel may
// end a sleep of their threads by so much later (PR_SET_TIMERSLACK in prctl(2)).
//
// A thread of Go's runtime sleeps 20 µs at a time while the program works. With the kernel's default it wakes up
// 30 times for each exec, and in a virtual machine each wake-up leaves the guest. Nothing in these two processes
// needs a timer that is more exact.
//
// A process inherits the slack of the thread that starts it, and so would containers. All other roles of
// berth-supervisor begin with the kernel's default. Package child resets it, and so does package hooks.
//
// The package has only C code: it runs before Go's runtime, which creates that thread first.
package timerslack

import "C"

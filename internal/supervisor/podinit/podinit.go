// Package podinit is the role of berth-supervisor that is pid 1 of a PID namespace
// which a pod's containers share: it lives until the pod ends, and lets the kernel
// reap what falls to it.
package podinit

import (
	"os/signal"
	"syscall"
)

// Run never returns. Every signal that can be ignored is: a container that may
// signal pid 1 must not end its neighbours. With SIGCHLD among them, the kernel
// reaps orphans by itself, and this process never wakes.
func Run() {
	signal.Ignore()
	for {
		// It returns for a signal that cannot be ignored.
		_ = syscall.Pause()
	}
}

// Package podinit has the two roles of berth-supervisor that only wait. "pod-init" is pid 1 of
// a PID namespace that a pod's containers share. "hold" waits while berth pins its namespaces.
package podinit

// The pod's init runs before Go does: see init.c.

import "C"

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// Env is the variable whose presence makes the program a pod's init, before main.
const Env = "BERTH_POD_INIT"

// Hold never returns. Only SIGKILL from outside of its PID namespace ends it, and the end of its standard input if
// that is a pipe: the process at the other end, which pins the namespaces, has ended.
func Hold() {
	signal.Ignore()
	var stdin syscall.Stat_t
	if err := syscall.Fstat(0, &stdin); err == nil && stdin.Mode&syscall.S_IFMT == syscall.S_IFIFO {
		awaitEnd(0)
		os.Exit(0)
	}
	for {
		// It returns for a signal that cannot be ignored.
		_ = syscall.Pause()
	}
}

// awaitEnd returns when a pipe has no writer.
func awaitEnd(fd int) {
	for buf := make([]byte, 1); ; {
		n, err := syscall.Read(fd, buf)
		if n <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

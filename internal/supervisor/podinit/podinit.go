// Package podinit has the two roles of berth-supervisor that only wait. "pod-init" is pid 1 of
// a PID namespace that a pod's containers share. "hold" waits while berth pins its namespaces.
package podinit

// The pod's init runs before Go does: see init.c.

import "C"

import (
	"os/signal"
	"syscall"
)

// Env is the variable whose presence makes the program a pod's init, before main.
const Env = "BERTH_POD_INIT"

// Hold never returns. Only SIGKILL from outside of its PID namespace ends it.
func Hold() {
	signal.Ignore()
	for {
		// It returns for a signal that cannot be ignored.
		_ = syscall.Pause()
	}
}

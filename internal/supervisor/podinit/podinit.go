// Package podinit has the roles of berth-supervisor that only wait: "pod-init", pid 1 of
// a PID namespace which a pod's containers share, and "hold", which namespaces belong to
// while they are made.
package podinit

// The pod's init runs before Go does: see init.c.

import "C"

import (
	"os/signal"
	"syscall"
)

// Env is the variable whose presence makes the program a pod's init, before main.
const Env = "BERTH_POD_INIT"

// Hold never returns. Only who knows its pid from outside ends it, by SIGKILL.
func Hold() {
	signal.Ignore()
	for {
		// It returns for a signal that cannot be ignored.
		_ = syscall.Pause()
	}
}

package ociruntime

import (
	"context"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Exec is a process to run in a running container.
type Exec struct {
	ContainerID string
	// ID is unique among the execs of the container.
	ID      string
	Process *specs.Process
	StdIO   StdIO
	// NoOwnInit has libcontainer start the process.
	NoOwnInit bool
	// Init is a pidfd of the container's init, which is not reaped; nil when the caller has none.
	Init *os.File
	// Pidfd is a unix socket on which the process sends its own pidfd before
	// any code of the user's runs.
	Pidfd *os.File
	// Group is a cgroup below the container's, for this process alone, so that all
	// processes that it starts can be found: see ExecGroup. Empty for none.
	Group cgroup.Paths
}

// Exec starts the process and returns its pid, a child of this process. When ctx ends
// first, Exec kills what it started. It does not remove Group, also on error. The error
// says only why: the caller adds that the exec failed.
func (r *Runtime) Exec(ctx context.Context, e *Exec) (pid int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s, err := r.states.Get(e.ContainerID)
	if err != nil {
		return 0, err
	}
	// A start would wait until the container is thawed.
	paused, err := s.Cgroups.Frozen()
	if err != nil {
		return 0, err
	}
	if err := checkRunning(r.waiting(e.ContainerID), paused); err != nil {
		return 0, err
	}
	r.host.FitProcess(e.Process)
	return r.starter.exec(ctx, e, s)
}

// checkRunning refuses an exec in a container that is not started or is paused.
func checkRunning(waiting, paused bool) error {
	switch {
	case waiting:
		return fmt.Errorf("it is not started: %w", errs.State)
	case paused:
		return fmt.Errorf("it is paused: %w", errs.State)
	}
	return nil
}

// ExecGroupPrefix begins the name of each exec's cgroup.
const ExecGroupPrefix = "berth-exec-"

// ExecGroup names the cgroup of one exec. On v1 one hierarchy is enough to find
// processes, and each join costs; the freezer's is taken, since a kill must thaw.
func ExecGroup(container cgroup.Paths, execID string) cgroup.Paths {
	for _, controller := range []string{"freezer", "pids", "name=systemd", ""} {
		if _, v1 := container["devices"]; controller == "" && v1 {
			continue // the key "" would mean all hierarchies to libcontainer
		}
		if sub := container.Sub(ExecGroupPrefix+execID, controller); len(sub) > 0 {
			return sub
		}
	}
	return nil
}

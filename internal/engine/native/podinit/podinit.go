// Package podinit starts the inits of pods whose containers share a PID namespace.
package podinit

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/engine/native/bundle"
	"github.com/berthrun/berth/internal/supervisor"
)

// Starter starts and removes inits. An init is a container with the id of its sandbox.
type Starter struct {
	Bundles    bundle.Store
	Supervisor *supervisor.Client
	// SystemdCgroup is true when systemd makes the init's cgroup.
	SystemdCgroup bool
	// Seccomp is true when the kernel has seccomp filters.
	Seccomp bool
	// NoOwnInit has libcontainer create the init's container.
	NoOwnInit bool
	// Handler starts the container, nil for the supervisor itself.
	Handler *supervisor.Handler
	// Sandbox has the handler make a sandbox by the sandbox API, nil for a container.
	Sandbox *supervisor.Sandbox
}

// Start starts the init of a sandbox, and returns when it has confined itself. In a sandbox of a handler no one sees
// whether it has: there it is not awaited.
func (s Starter) Start(ctx context.Context, id string, spec *specs.Spec) (pid int, err error) {
	if err := s.Bundles.Write(id, spec); err != nil {
		return 0, err
	}
	_, err = s.Supervisor.Create(ctx, &supervisor.CreateRequest{
		ID: id, Bundle: s.Bundles.Dir(id), SystemdCgroup: s.SystemdCgroup, NoOwnInit: s.NoOwnInit, Handler: s.Handler,
		Sandbox: s.Sandbox,
	})
	if err != nil {
		return 0, fmt.Errorf("cannot create %s: %w", s.what(), err)
	}
	if pid, err = s.Supervisor.Start(ctx, id); err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", s.what(), err)
	}
	if s.Handler != nil {
		return pid, nil
	}
	return pid, s.awaitConfined(ctx, pid)
}

// what the errors call the container.
func (s Starter) what() string {
	if s.Sandbox != nil {
		return "the pod's sandbox"
	}
	if s.Handler != nil {
		return "the pod's root container"
	}
	return "the pod's init"
}

// Remove removes the init of a sandbox. Nil when there is none.
func (s Starter) Remove(ctx context.Context, id string) error {
	if !s.Bundles.Exists(id) {
		return nil
	}
	if err := s.Supervisor.Remove(ctx, id); err != nil {
		return fmt.Errorf("cannot remove the pod's init: %w", errors.Join(err, s.Bundles.Remove(id)))
	}
	return s.Bundles.Remove(id)
}

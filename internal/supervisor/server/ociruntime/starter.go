package ociruntime

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/execstate"
)

// starter starts the processes of containers. libcontainerStarter is one. Another one
// needs no change outside of this package, as long as it
//   - writes the container's state as runc does (Runtime.Find reads it, and `runc list`),
//   - lets an init wait as waiting.go describes,
//   - starts inits and execs as children of this process.
type starter interface {
	// plan adds to p the facts that follow from the spec, and the starter's payload. The
	// spec is checked. Nothing is made.
	plan(p *Plan, spec *specs.Spec, request *PlanRequest) error
	// create is Runtime.Create.
	create(ctx context.Context, p *Plan, io *StdIO) (pid int, err error)
	// exec is Runtime.Exec in a container that runs and is not frozen. The process fits the
	// host.
	exec(ctx context.Context, e *Exec, s *execstate.State) (pid int, err error)
}

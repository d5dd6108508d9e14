// Package execs executes commands in containers of a Docker Engine.
package execs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/stream"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Container is a container that runs.
type Container struct {
	Client *api.Client
	Log    *slog.Logger
	// EngineID is the Docker Engine's id of the container, Cgroups are those of its process.
	EngineID string
	Cgroups  cgroup.Paths
}

// Exec executes a command and returns its exit code, as engine.Engine's Exec. State when the container
// does not run, Invalid when the command cannot be executed. After an error the command does not run
// on.
func (c *Container) Exec(ctx context.Context, spec *engine.ExecSpec) (code int32, err error) {
	mark := "BERTH_EXEC=" + rand.Text()
	made, err := c.Client.ExecCreate(ctx, c.EngineID, client.ExecCreateOptions{
		Cmd: spec.Command, TTY: spec.TTY, DetachKeys: stream.DetachKeys,
		AttachStdin: spec.Stdin != nil, AttachStdout: true, AttachStderr: !spec.TTY,
		Env: []string{mark},
	})
	if err != nil {
		return 0, c.fault(ctx, err)
	}
	x := &execution{
		in: c, id: made.ID, mark: mark,
		output: &beginning{to: spec.Stdout}, ended: make(chan struct{}), copied: make(chan struct{}),
	}
	conn, err := c.Client.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: spec.TTY})
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Deadline) { // the engine may have got the request
			x.killAll()
		}
		return 0, c.fault(ctx, err)
	}
	return x.run(ctx, spec, conn.HijackedResponse)
}

// errEnding is the error of a command whose container ends meanwhile.
func errEnding() error { return fmt.Errorf("it is ending: %w", errs.State) }

// fault gives the error of a command that cannot be executed its kind. An engine answers with a conflict
// when the container does not run, and with any error when it ends at this moment: Docker 20.10 with
// status 500 and no more.
func (c *Container) fault(ctx context.Context, err error) error {
	if errors.Is(err, errs.Exists) || (!errors.Is(err, errs.Unavailable) && !errors.Is(err, errs.Deadline) && c.ending(ctx)) {
		return errEnding()
	}
	return err
}

// ending reports whether the container's process has ended. The engine notices that a moment later than
// its runtime does, which executes no command in the container any more.
func (c *Container) ending(ctx context.Context) bool {
	got, err := c.Client.ContainerInspect(ctx, c.EngineID, client.ContainerInspectOptions{})
	state := got.Container.State
	return err == nil && state != nil && (!state.Running || hasEnded(state.Pid))
}

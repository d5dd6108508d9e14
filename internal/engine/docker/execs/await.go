package execs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine/docker/stream"
	"github.com/berthrun/berth/internal/errs"
)

// awaitStart waits until the engine has started the command, or could not start it. The engine
// answers to the attachment before that: it then reports a command that does not run, without a
// process and without a code. It closes the output of a command that it cannot start.
func (x *execution) awaitStart(ctx context.Context, closed <-chan struct{}) (client.ExecInspectResult, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		over := stream.IsClosed(closed) // before the look
		got, err := x.inspect(ctx)
		if err != nil || isStarted(&got) {
			return got, err
		}
		if over && !got.Running {
			return got, fmt.Errorf("the Docker engine has ended the session before it started the command: %w", errs.Unavailable)
		}
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// isStarted reports whether the engine has started a command, or has failed to.
func isStarted(got *client.ExecInspectResult) bool {
	return got.PID > 0 || !got.Running && got.ExitCode != 0
}

func (x *execution) awaitCode(ctx context.Context) (client.ExecInspectResult, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		got, err := x.inspect(ctx)
		if err != nil || !got.Running {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (x *execution) inspect(ctx context.Context) (client.ExecInspectResult, error) {
	got, err := x.in.Client.ExecInspect(ctx, x.id, client.ExecInspectOptions{})
	if errors.Is(err, errs.NotFound) {
		// The engine forgets the commands of a container that has ended, and all commands when it
		// is restarted.
		return got, fmt.Errorf("the Docker engine no longer knows the command: its container has ended, or the engine was restarted: %w", errs.State)
	}
	return got, err
}

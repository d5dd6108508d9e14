package pod

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/record"
)

// StartContainer starts a created container. When its program cannot be started
// the container is EXITED with code 128 and reason StartError.
func (c *Containers) StartContainer(ctx context.Context, id string) error {
	rec, err := c.records.Container(id)
	if err != nil {
		return fmt.Errorf("cannot start container: %w", err)
	}
	_, err = c.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindStart,
		Run: func(ctx context.Context, j *job.Job) (string, error) { return rec.ID, c.startContainer(ctx, j, rec.ID) },
	})
	return err
}

func (c *Containers) startContainer(ctx context.Context, j *job.Job, id string) error {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return fmt.Errorf("cannot start container: %w", err)
	}
	if _, err := c.records.ReadySandbox(rec.SandboxID); err != nil {
		return fmt.Errorf("cannot start container %q: %w", id, err)
	}
	j.Stage("write record", "the state directory")
	if _, err := c.records.Containers.Update(id, func(r *record.Container) error {
		if r.State != record.ContainerCreated || r.Removing {
			return fmt.Errorf("cannot start container %q: it is %s, not created: %w", id, r.State, errs.State)
		}
		r.State, r.StartedAt = record.ContainerStarting, now()
		return nil
	}); err != nil {
		return err
	}
	if why := rec.StartError(); why != "" {
		return c.failStart(ctx, j, id, fmt.Errorf("cannot start container %q: %s: %w", id, why, errs.Invalid))
	}
	j.Stage("ask plugins", "the NRI plugins")
	started, err := c.plugins.StartContainer(ctx, rec)
	if err != nil {
		return c.failStart(ctx, j, id, fmt.Errorf("cannot start container %q: %w", id, err))
	}
	var running *record.Container
	defer func() { started(running) }()
	j.Stage("start container", "the engine")
	pid, err := call.Get(ctx, c.calls, id, "start container "+id, func(ctx context.Context) (int, error) {
		return c.engine.Start(ctx, id)
	})
	if err != nil {
		return c.failStart(ctx, j, id, err)
	}
	j.Stage("publish", "the state directory")
	updated, err := c.records.Containers.Update(id, func(r *record.Container) error {
		if r.State == record.ContainerStarting { // else its exit was recorded already
			r.State, r.Pid = record.ContainerRunning, pid
		}
		return nil
	})
	if err != nil {
		return c.failStart(ctx, j, id, err)
	}
	running = updated
	c.tombstones.Touch(id)
	return nil
}

// failStart kills the processes of the container and records the failure.
func (c *Containers) failStart(ctx context.Context, j *job.Job, id string, cause error) error {
	j.StageFailed(cause)
	if errors.Is(context.Cause(ctx), job.ErrShutdown) {
		return fmt.Errorf("%w: %w", job.ErrShutdown, cause) // recovery finds out what became of it
	}
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = fmt.Errorf("%w: %w", context.Cause(ctx), cause)
	}
	ctx = context.WithoutCancel(ctx)
	j.Stage("kill what was started", "the engine")
	killErr := c.signal(ctx, id, syscall.SIGKILL, true)
	err := c.recordStartError(id, cause.Error(), nil)
	c.exits.Notify(id)
	c.tombstones.Touch(id)
	return errors.Join(cause, killErr, err)
}

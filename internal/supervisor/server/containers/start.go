package containers

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/hooks"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Start lets the init of a created container execute the program, and returns its pid. A repeated
// Start waits for the first one. The error says only why: the daemon adds that the container cannot be
// started. Kind State when the init has ended without the program.
func (c *Container) Start(ctx context.Context) (pid int, err error) {
	ctx, stopLasting := c.set.lasting(ctx)
	defer stopLasting()
	ctx, stop := context.WithTimeout(ctx, timeout(c.snapshot().Request.StartTimeout))
	defer stop()
	if err := c.lock(ctx); err != nil {
		return 0, err
	}
	defer c.unlock()
	rec := c.snapshot()
	switch rec.Stage {
	case record.Running:
		return rec.Init.Pid, nil
	case record.Exited:
		if !rec.Exit.StartFailed {
			return rec.Init.Pid, nil
		}
		return 0, fmt.Errorf("%s: %w", rec.Exit.Message, errs.State)
	case record.Creating:
		return 0, fmt.Errorf("its creation did not end: %w", errs.State)
	}
	runtime, err := c.runtime()
	if err != nil {
		return 0, err
	}
	// This process must not become the keeper after it has opened the FIFO and before others hold
	// it: the init would have no reader to write to.
	leave, err := c.set.enterFork(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	done := c.holdExit()
	defer done()
	// Under the hold: else the exit may be recorded meanwhile, and Starting would replace it.
	pidfd, err := c.live()
	if err != nil {
		return 0, fmt.Errorf("its init has ended: %w", errs.State)
	}
	if err := c.update(func(r *record.Container) { r.Stage = record.Starting }); err != nil {
		return 0, err
	}
	err = runtime.Start(ctx, c.startOf(ctx, pidfd))
	return rec.Init.Pid, c.finishStart(ctx, err)
}

// startOf returns what the OCI runtime needs to start the container. ctx ends with the start.
func (c *Container) startOf(ctx context.Context, pidfd *os.File) *ociruntime.Starting {
	return &ociruntime.Starting{
		ID:    c.id,
		Pidfd: pidfd,
		Ended: c.ended,

		Hooked: c.hooked(),
		Hold: func(fifo *os.File) error {
			// The runtime closes its own, also when this process is about to
			// become the keeper.
			own, err := sysfd.Duplicate(fifo)
			if err != nil {
				return err
			}
			c.set.held.Hold(ctx, c.key("start"), own)
			c.set.opts.Clients.Hold(c.id, supervisor.StreamStart, fifo)
			return nil
		},
	}
}

// releaseStart closes the FIFO of a start in this process, in the keeper and at the clients.
func (c *Container) releaseStart() {
	held := c.set.held.Get(c.key("start"))
	c.set.held.Release(c.key("start"))
	closeFiles(held)
	c.set.opts.Clients.Drop(c.id, supervisor.StreamStart)
}

// holdExit keeps the exit from being recorded until release is called: until it is known whether the
// program was executed.
func (c *Container) holdExit() (release func()) {
	ch := make(chan struct{})
	c.mu.Lock()
	c.starting = ch
	c.mu.Unlock()
	return func() { close(ch) }
}

// finishStart records the outcome of a start: err is what the OCI runtime returned.
func (c *Container) finishStart(ctx context.Context, err error) error {
	if err != nil && c.set.stopping.Err() != nil {
		return fmt.Errorf("%w: %w", err, errs.Unavailable) // a successor completes it
	}
	defer c.releaseStart()
	if err == nil {
		if err = c.runPoststart(ctx); err == nil {
			return c.update(func(r *record.Container) { r.Stage = record.Running })
		}
		if c.set.stopping.Err() != nil {
			return fmt.Errorf("%w: %w", err, errs.Unavailable) // a successor runs them again
		}
	}
	// The init neither waits nor runs the program. It is killed, and its exit is reported as any
	// other.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer stop()
	return errors.Join(err, c.killProcesses(ctx))
}

// hooked reports whether the init runs hooks before it executes the program.
func (c *Container) hooked() bool {
	kept := c.snapshot().Hooks
	return kept != nil && kept.StartContainer
}

// runPoststart runs the hooks of a container whose program has begun. Its exit is not reported before they have
// ended. The caller ends the container when one fails, as the OCI runtime specification says.
func (c *Container) runPoststart(ctx context.Context) error {
	rec := c.snapshot()
	if rec.Hooks == nil || len(rec.Hooks.Poststart) == 0 {
		return nil
	}
	return hooks.Run(ctx, hooks.Poststart, rec.Hooks.Poststart, c.hookState(specs.StateRunning, rec.Init.Pid))
}

// hookState is the input of hooks.
func (c *Container) hookState(status specs.ContainerState, pid int) *specs.State {
	rec := c.snapshot()
	return &specs.State{
		Version: specs.Version, ID: c.id, Status: status, Pid: pid,
		Bundle: rec.Request.Bundle, Annotations: rec.Hooks.Annotations,
	}
}

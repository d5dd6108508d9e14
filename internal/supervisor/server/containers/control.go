package containers

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// reopenTimeout bounds the wait for a log file that is opened again.
const reopenTimeout = 30 * time.Second

// Signal sends a signal to the container's init, or to all its processes. SIGKILL reaches a paused
// container too: it is thawed, since frozen processes cannot die.
func (c *Container) Signal(ctx context.Context, sig syscall.Signal, all bool) error {
	if err := c.signal(ctx, sig, all); err != nil {
		return fmt.Errorf("cannot send %v to container %s: %w", sig, c.id, err)
	}
	return nil
}

func (c *Container) signal(ctx context.Context, sig syscall.Signal, all bool) error {
	group := c.snapshot().Cgroups
	if done, err := c.signalByRuntime(ctx, sig, all); done || err != nil {
		return err
	}
	if all {
		if err := group.Signal(sig); err != nil {
			return err
		}
	} else {
		pidfd, err := c.live()
		if err != nil {
			return err
		}
		if err := sysproc.SignalPidfd(pidfd, sig); err != nil {
			return err
		}
	}
	if sig == syscall.SIGKILL {
		return group.Thaw()
	}
	return nil
}

// signalByRuntime sends a signal to processes that only the runtime knows. done is false for others.
func (c *Container) signalByRuntime(ctx context.Context, sig syscall.Signal, all bool) (done bool, err error) {
	runtime, err := c.runtime()
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	pidfd := c.pidfd
	c.mu.Unlock()
	return runtime.Signal(ctx, &ociruntime.Signalled{ContainerID: c.id, Pidfd: pidfd, Signal: sig, All: all})
}

// killProcesses kills all processes of the container. Nil when there are none.
func (c *Container) killProcesses(ctx context.Context) error {
	var err error
	select {
	case <-c.exited: // a runtime that has ended, or hangs, does not keep the container
	default:
		_, err = c.signalByRuntime(ctx, syscall.SIGKILL, true)
	}
	return errors.Join(errs.IgnoreNotFound(err), c.snapshot().Cgroups.Kill(ctx))
}

// Update changes the container's limits. Limits that are nil or empty in res stay as they are.
// See ociruntime.Runtime.Update. Kind State when the container has ended.
func (c *Container) Update(ctx context.Context, res *specs.LinuxResources) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if _, err := c.live(); err != nil {
		return fmt.Errorf("%w: %w", err, errs.State)
	}
	runtime, err := c.runtime()
	if err != nil {
		return err
	}
	return runtime.Update(ctx, c.id, res)
}

// ReopenLog opens the file at the container's log path, and returns when the output goes there.
// Kind State when the container has ended.
func (c *Container) ReopenLog(ctx context.Context) error {
	c.mu.Lock()
	pump, stage := c.pump, c.rec.Stage
	c.mu.Unlock()
	if stage == record.Exited || pump == nil {
		return fmt.Errorf("cannot reopen the log of container %s: it is not running: %w", c.id, errs.State)
	}
	ctx, stop := context.WithTimeout(ctx, reopenTimeout)
	defer stop()
	return pump.Reopen(ctx)
}

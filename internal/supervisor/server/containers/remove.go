package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/hooks"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// removeTimeout bounds one Remove, which may be repeated.
const removeTimeout = 60 * time.Second

// Remove removes everything of a container, with or without a record. Nil when the container is
// absent.
// An error says only why: the caller adds that the container cannot be removed.
func (s *Set) Remove(ctx context.Context, id string) error {
	ctx, stopLasting := s.lasting(ctx)
	defer stopLasting()
	ctx, stop := context.WithTimeout(ctx, removeTimeout)
	defer stop()
	for {
		if c, err := s.Find(id); err == nil {
			return c.remove(ctx)
		}
		if claimed, err := s.removeAbsent(ctx, id); claimed {
			return err
		}
	}
}

// removeAbsent removes what may exist of an ID that no container has. It claims the ID: a cancelled create, which may
// still be before its own claim, must not make anything meanwhile. claimed is false when a container has the ID now.
func (s *Set) removeAbsent(ctx context.Context, id string) (claimed bool, err error) {
	c, err := s.claim(record.Container{Version: record.Version, ID: id, BootID: s.bootID, Stage: record.Creating})
	if err != nil {
		return false, nil //nolint:nilerr // it says that a container has the ID
	}
	defer c.unlock()
	defer s.delete(c)
	return true, s.removeUnknown(ctx, id)
}

// remove ends the call that has locked the container, and removes it.
func (c *Container) remove(ctx context.Context) error {
	c.interrupt(ctx)
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if isClosed(c.gone) {
		return nil
	}
	return c.discard(ctx)
}

// interrupt cancels another call of the container, so that it unlocks the container.
func (c *Container) interrupt(ctx context.Context) {
	c.mu.Lock()
	if c.stopCreate != nil {
		c.stopCreate()
	}
	rec := c.rec
	c.mu.Unlock()
	if rec.Stage != record.Created && rec.Stage != record.Starting {
		return
	}
	if err := c.killProcesses(ctx); err != nil {
		c.set.log.Warn("cannot kill a container that is to be removed", "container", c.id, "error", err)
	}
}

// discard is the only function that removes a container, complete or partly created. It finds the
// processes by the cgroup, not by the pid. Each step returns nil when its object is absent. discard
// removes the record last, and keeps it when a step fails. The caller has locked c.
func (c *Container) discard(ctx context.Context) error {
	rec := c.snapshot()
	if err := c.kill(ctx, &rec); err != nil {
		return err
	}
	c.endExecs()
	c.mu.Lock()
	pump, console, pidfd := c.pump, c.console, c.pidfd
	c.mu.Unlock()
	if pump != nil {
		pump.Abandon()
	}
	if rec.Stage == record.Creating && pidfd != nil { // else its exit has reaped it
		c.set.reapChild(pidfd, "container", c.id)
	}
	s := c.set
	s.held.Release(c.id + "/")
	c.streams.Close()
	for _, f := range []*os.File{console, pidfd} {
		if f != nil {
			f.Close()
		}
	}
	if err := s.clear(ctx, c.id, rec.Cgroups, c.runPoststop); err != nil {
		return err
	}
	s.oom.Forget(c.id)
	s.delete(c)
	s.opts.Clients.Drop(c.id)
	return nil
}

// kill kills all processes, and waits until the exit is reported, unless the container is partly
// created.
func (c *Container) kill(ctx context.Context, rec *record.Container) error {
	if err := rec.Cgroups.Check(c.id); err != nil {
		return err
	}
	if err := c.killProcesses(ctx); err != nil {
		return err
	}
	if rec.Stage == record.Creating {
		return nil
	}
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("its exit is not reported: %w", ctx.Err())
	}
}

// clear removes the state of the OCI runtime, the cgroup and the record of a container. last is called before the
// record goes.
func (s *Set) clear(ctx context.Context, id string, group cgroup.Paths, last func() error) error {
	err := s.runtime.Remove(id)
	if err != nil && group.Remove(ctx) == nil {
		// libcontainer fails at cgroups that a container has nested deeper than a path can be long.
		err = s.runtime.Remove(id)
	}
	if err != nil {
		return err
	}
	if err := s.programs.Remove(ctx, id); err != nil {
		return err
	}
	if err := s.shims.Remove(ctx, id); err != nil {
		return err
	}
	if err := group.Remove(ctx); err != nil {
		return err
	}
	if err := last(); err != nil {
		return err
	}
	return os.RemoveAll(s.dir(id))
}

// removeUnknown removes what may exist of a container without a record: state of the OCI runtime,
// which runc may have made, or the container of a record in the quarantine.
func (s *Set) removeUnknown(ctx context.Context, id string) error {
	var group cgroup.Paths
	found, err := s.runtime.Find(id)
	if errors.Is(err, errs.Invalid) {
		return err
	}
	if err == nil {
		group = found.Cgroups
	} else if of, programErr := s.programs.Cgroups(id); programErr == nil {
		group, err = of, nil
	} else if of, shimErr := s.shims.Cgroups(id); shimErr == nil {
		group, err = of, nil
	}
	if err == nil {
		if err := group.Check(id); err != nil {
			return err
		}
		if err := group.Kill(ctx); err != nil {
			return err
		}
	}
	s.held.Release(id + "/")
	return s.clear(ctx, id, group, func() error { return nil })
}

// poststopTimeout bounds all poststop hooks of a container, also when the caller of Remove has gone.
const poststopTimeout = 60 * time.Second

// runPoststop runs the hooks of a container that is removed. A hook that fails is logged, and does not keep the
// container, as the OCI runtime specification says. An error is that of a supervisor that is about to end: the next
// one runs the hooks again.
func (c *Container) runPoststop() error {
	kept := c.snapshot().Hooks
	if kept == nil || len(kept.Poststop) == 0 {
		return nil
	}
	ctx, stop := context.WithTimeout(c.set.stopping, poststopTimeout)
	defer stop()
	leave, err := c.set.enterFork(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = hooks.RunAll(ctx, hooks.Poststop, kept.Poststop, c.hookState(specs.StateStopped, 0))
	if err != nil && c.set.stopping.Err() != nil {
		return err
	}
	if err != nil {
		c.set.log.Warn("a container is removed, although poststop hooks have failed", "container", c.id, "error", err)
	}
	return nil
}

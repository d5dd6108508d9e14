package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// removeTimeout bounds one Remove; it may be asked again.
const removeTimeout = 60 * time.Second

// remove undoes a container of which anything is there, known or not.
func (s *Server) remove(ctx context.Context, id string) error {
	ctx, stop := context.WithTimeout(ctx, removeTimeout)
	defer stop()
	c, err := s.find(id)
	if errors.Is(err, errs.NotFound) {
		return s.removeUnknown(ctx, id)
	}
	c.interrupt(ctx)
	if err := c.begin(ctx); err != nil {
		return fmt.Errorf("cannot remove container %s: %w", id, err)
	}
	defer c.end()
	if isClosed(c.gone) {
		return nil
	}
	return c.discard(ctx)
}

// interrupt ends what another verb waits for, so that it lets go of the container.
func (c *container) interrupt(ctx context.Context) {
	c.mu.Lock()
	if c.stopCreate != nil {
		c.stopCreate()
	}
	rec := c.rec
	c.mu.Unlock()
	if rec.Stage != created && rec.Stage != starting {
		return
	}
	if err := rec.Cgroups.Kill(ctx); err != nil {
		c.server.log.Warn("a container that is to be removed is not killed at once", "container", c.id, "error", err)
	}
}

// discard is the one way in which a container goes, whole or half-made. It goes
// by the cgroup, not by the pid; each step is nil when its thing is absent; the
// record goes last, and stays when a step fails. c.verb is held.
func (c *container) discard(ctx context.Context) error {
	rec := c.snapshot()
	if err := c.kill(ctx, &rec); err != nil {
		return fmt.Errorf("cannot remove container %s: %w", c.id, err)
	}
	c.endExecs()
	c.mu.Lock()
	pump, console, pidfd := c.pump, c.console, c.pidfd
	c.mu.Unlock()
	if pump != nil {
		pump.Close()
	}
	if rec.Stage == creating && pidfd != nil { // else its exit has done it
		c.server.reapChild(pidfd, "container", c.id)
	}
	s := c.server
	s.vault.release(c.id + "/")
	c.streams.close()
	for _, f := range []*os.File{console, pidfd} {
		if f != nil {
			f.Close()
		}
	}
	if err := s.clear(ctx, c.id, rec.Cgroups); err != nil {
		return fmt.Errorf("cannot remove container %s: %w", c.id, err)
	}
	s.oom.Forget(c.id)
	s.forget(c)
	s.tellDropped(c.id)
	return nil
}

// kill ends all processes, and waits until an exit that somebody watches for is
// told.
func (c *container) kill(ctx context.Context, rec *record) error {
	if err := rec.Cgroups.Check(c.id); err != nil {
		return err
	}
	if err := rec.Cgroups.Kill(ctx); err != nil {
		return err
	}
	if rec.Stage == creating {
		return nil
	}
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("its exit does not come: %w", ctx.Err())
	}
}

// clear removes what the file system and the kernel have of a container.
func (s *Server) clear(ctx context.Context, id string, group cgroup.Paths) error {
	if err := s.runtime.Remove(id); err != nil {
		return err
	}
	if err := group.Remove(ctx); err != nil {
		return err
	}
	return os.RemoveAll(s.dir(id))
}

// removeUnknown removes what may be there without a record: the runtime's state,
// which runc left, say, or what a quarantined record told of.
func (s *Server) removeUnknown(ctx context.Context, id string) error {
	found, err := s.runtime.Find(id)
	if errors.Is(err, errs.Invalid) {
		return err
	}
	var group cgroup.Paths
	if err == nil {
		if err := found.Cgroups.Check(id); err != nil {
			return fmt.Errorf("cannot remove container %s: %w", id, err)
		}
		group = found.Cgroups
		if err := group.Kill(ctx); err != nil {
			return fmt.Errorf("cannot remove container %s: %w", id, err)
		}
	}
	s.vault.release(id + "/")
	return s.clear(ctx, id, group)
}

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"golang.org/x/sync/errgroup"
)

// parallel is how many things recovery works on at once.
const parallel = 8

// recover brings records and reality into line. What needs the engine or the
// network to undo something goes on in the background, as jobs; everything that
// requests will look at is settled when it returns.
func (s *Service) recover(ctx, background context.Context) error {
	if err := s.enterBoot(); err != nil {
		return err
	}
	exits, err := s.opts.Engine.Exits(background)
	if err != nil {
		return fmt.Errorf("cannot listen to the engine's exits: %w", err)
	}
	s.background.Go(func() { s.listen(background, exits) })
	actual, err := s.opts.Engine.List(ctx)
	if err != nil {
		return fmt.Errorf("cannot list what the engine has: %w", err)
	}
	found := make(map[string]engine.Actual, len(actual))
	for _, a := range actual {
		found[a.ID] = a
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, rec := range s.containers.All() {
		g.Go(func() error {
			errs.Protect("recovery of container "+rec.ID, func() { s.recoverContainer(background, rec, found[rec.ID]) })
			return nil
		})
	}
	for _, rec := range s.sandboxes.All() {
		g.Go(func() error {
			errs.Protect("recovery of sandbox "+rec.ID, func() { s.recoverSandbox(background, rec, found[rec.ID]) })
			return nil
		})
	}
	err = g.Wait()
	s.endRivals(background) // not before: what was lost keeps no name
	s.background.Go(func() { errs.Protect("clean-up after the start", func() { s.clean(background, actual) }) })
	return err
}

// enterBoot deals with a reboot, if there was one: records that are left from
// before it and, where the state directory was emptied, tombstones become
// records of what has ended. A mark in the state directory tells that this boot
// has been entered.
func (s *Service) enterBoot() error {
	mark := filepath.Join(s.opts.StateDir, "boot")
	last, err := os.ReadFile(mark)
	if err == nil && string(last) == s.opts.BootID {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot read the mark of the last boot: %w", err)
	}
	for _, rec := range s.tombstones.sandboxes.All() {
		_, err := s.sandboxes.Get(rec.ID)
		if errors.Is(err, errs.NotFound) {
			rec := *rec
			s.restored(s.sandboxes.Create(rec.ID, s.rebootedSandbox(&rec)))
		}
	}
	for _, rec := range s.tombstones.containers.All() {
		_, err := s.containers.Get(rec.ID)
		if errors.Is(err, errs.NotFound) {
			rec := *rec
			s.restored(s.containers.Create(rec.ID, s.rebootedContainer(&rec)))
		}
	}
	for _, rec := range s.sandboxes.All() {
		if rec.Boot != s.opts.BootID {
			_, err := s.sandboxes.Update(rec.ID, func(r *SandboxRecord) error { s.rebootedSandbox(r); return nil })
			s.restored(err)
		}
	}
	for _, rec := range s.containers.All() {
		if rec.Boot != s.opts.BootID {
			_, err := s.containers.Update(rec.ID, func(r *ContainerRecord) error { s.rebootedContainer(r); return nil })
			s.restored(err)
		}
	}
	return s.opts.Disk.Write(mark, []byte(s.opts.BootID))
}

// rebootedSandbox makes of a record what a reboot made of the sandbox.
func (s *Service) rebootedSandbox(r *SandboxRecord) *SandboxRecord {
	if r.State == SandboxReady {
		r.State, r.Message = SandboxStopping, "the node was restarted"
	}
	r.Boot = s.opts.BootID
	return r
}

// rebootedContainer makes of a record what a reboot made of the container.
func (s *Service) rebootedContainer(r *ContainerRecord) *ContainerRecord {
	if r.visible() && r.State != ContainerExited {
		r.exit(time.Now(), engine.CodeUnknown, engine.ReasonUnknown, fmt.Sprintf("the node was restarted while the container was %s", r.State))
	}
	r.Boot = s.opts.BootID
	return r
}

// restored reports what keeps one record from being brought over a reboot; the
// others go on.
func (s *Service) restored(err error) {
	if err != nil {
		s.log.Error("cannot bring a record over the restart of the node", "err", err)
	}
}

// recoverSandbox resumes or undoes what the record says was under way.
func (s *Service) recoverSandbox(ctx context.Context, rec *SandboxRecord, actual engine.Actual) {
	switch rec.State {
	case SandboxCreating, SandboxRemoving:
		s.pursue(ctx, s.removeSandboxRequest(rec))
	case SandboxStopping:
		s.pursue(ctx, s.stopSandboxRequest(rec))
	case SandboxReady:
		if actual.State != "" && actual.State != engine.StateBroken && actual.State != engine.StateStopped {
			return
		}
		next, err := s.sandboxes.Update(rec.ID, func(r *SandboxRecord) error {
			if r.State != SandboxReady {
				return errAlready
			}
			r.State, r.Message = SandboxStopping, "it was lost while nobody looked"
			return nil
		})
		if err != nil {
			if !errors.Is(err, errAlready) && !errors.Is(err, errs.NotFound) {
				s.log.Error("cannot record that a sandbox was lost", "sandbox", rec.ID, "err", err)
			}
			return
		}
		s.log.Error("a sandbox was lost while nobody looked", "sandbox", rec.ID, "pod", rec.name())
		s.pursue(ctx, s.stopSandboxRequest(next))
	case SandboxStopped:
		if s.holds(rec) { // an older berth stopped it
			s.pursue(ctx, s.stopSandboxRequest(rec))
		}
	}
}

// recoverContainer brings one record into line with what the engine has.
func (s *Service) recoverContainer(ctx context.Context, rec *ContainerRecord, actual engine.Actual) {
	if rec.State == ContainerCreating || rec.Removing {
		s.pursue(ctx, s.removeContainerRequest(rec))
		return
	}
	switch rec.State {
	case ContainerStarting, ContainerRunning:
		if why := rec.startError(); why != "" {
			// Berth died before it wrote that down. The engine has nothing to tell.
			s.recordExit(&engine.Exit{
				ContainerID: rec.ID, Code: engine.CodeStartError, At: time.Now(), Reason: engine.ReasonStartError,
				Message: fmt.Sprintf("cannot start container %q: %s", rec.ID, why),
			})
			return
		}
		s.recoverStarted(ctx, rec, actual)
	case ContainerCreated:
		if actual.State != engine.StateCreated && rec.startError() == "" {
			s.settleLater(ctx, rec.ID, "it was lost before it was started, while berth did not run")
		}
	case ContainerExited:
		if old, err := s.tombstones.containers.Get(rec.ID); err != nil || old.State != ContainerExited {
			s.tombstones.touch(rec.ID)
		}
	case ContainerCreating:
	}
}

func (s *Service) recoverStarted(ctx context.Context, rec *ContainerRecord, actual engine.Actual) {
	switch actual.State {
	case engine.StateRunning:
		s.adopt(rec.ID, ContainerRunning, actual.Pid)
	case engine.StateCreated:
		if rec.State == ContainerStarting {
			s.adopt(rec.ID, ContainerCreated, 0)
		}
	default:
		s.settleLater(ctx, rec.ID, "it ended while berth did not run, and nobody learnt its exit code")
		return
	}
	if rec.Stop != nil {
		s.pursue(ctx, s.stopContainerRequest(rec, rec.Stop.left()))
	}
}

// recheck looks, after the engine was away, for what was lost with it. It leaves
// alone what a job works on: records are read first, so that whatever they say
// exists was made before the engine is asked.
func (s *Service) recheck(ctx context.Context) {
	containers, sandboxes := s.containers.All(), s.sandboxes.All()
	actual, err := s.opts.Engine.List(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("cannot list what the engine has", "err", err)
		}
		return
	}
	found := make(map[string]engine.Actual, len(actual))
	for _, a := range actual {
		found[a.ID] = a
	}
	for _, rec := range containers {
		switch state := found[rec.ID].State; {
		case rec.State == ContainerRunning && state != engine.StateRunning:
			s.settleLater(ctx, rec.ID, "it ended while the engine was away, and nobody learnt its exit code")
		case rec.State == ContainerCreated && rec.startError() == "" && state != engine.StateCreated && state != engine.StateRunning:
			s.settleLater(ctx, rec.ID, "it was lost before it was started, while the engine was away")
		}
	}
	for _, rec := range sandboxes {
		if rec.State == SandboxReady {
			s.recoverSandbox(ctx, rec, found[rec.ID])
		}
	}
}

// adopt records what a container is found to be doing, unless its exit was told
// in the meantime.
func (s *Service) adopt(id string, state ContainerState, pid int) {
	_, err := s.containers.Update(id, func(r *ContainerRecord) error {
		if !r.alive() || r.State == state && r.Pid == pid {
			return errAlready
		}
		r.State, r.Pid = state, pid
		return nil
	})
	switch {
	case err == nil:
		s.tombstones.touch(id)
	case !errors.Is(err, errAlready):
		s.log.Error("cannot record what a container does", "container", id, "state", state, "err", err)
	}
}

// settleLater gives the engine time to tell the exit that was missed.
func (s *Service) settleLater(ctx context.Context, id, why string) {
	s.background.Go(func() {
		patience := time.After(s.limits.Settle)
		for {
			news := s.ends.of(id)
			if rec, err := s.containers.Get(id); err != nil || rec.State == ContainerExited {
				s.ends.tell(id)
				return
			}
			select {
			case <-news:
			case <-patience:
				errs.Protect("settlement of container "+id, func() { s.settle(id, why) })
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

// clean removes what has no record: tombstones whose removal was not written,
// things of the engine, attachments, and what the network itself finds.
func (s *Service) clean(ctx context.Context, actual []engine.Actual) {
	s.tombstones.reconcile()
	s.removeOrphans(ctx, actual, engine.KindContainer)
	s.removeOrphans(ctx, actual, engine.KindSandbox)
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, id := range s.attachments.IDs() {
		if _, err := s.sandboxes.Get(id); err == nil {
			continue // its own teardown detaches it
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, s.limits.Step)
			defer cancel()
			err := errs.Guard("detachment of sandbox "+id, func() error { return s.detach(ctx, id) })
			if err != nil {
				s.log.Error("cannot detach a sandbox of an earlier run", "sandbox", id, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait() // each has reported its own error
	s.collectNetwork(ctx)
}

// collectTime bounds the network's garbage collection: new attachments wait for it.
const collectTime = 30 * time.Second

// collectNetwork tells the network which attachments live. One that is written
// down before the list is taken is in it; one that comes later waits at the gate.
func (s *Service) collectNetwork(ctx context.Context) {
	open := s.networkGate.close()
	defer open()
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	_, err := callFor(ctx, s.calls, "network", "collect the network's garbage", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.opts.Network.GC(ctx, s.attachments.IDs())
	})
	if err != nil && ctx.Err() == nil {
		s.log.Error("the network keeps what no sandbox uses", "err", err)
	}
}

func (s *Service) removeOrphans(ctx context.Context, actual []engine.Actual, kind engine.Kind) {
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, a := range actual {
		if a.Kind != kind || s.hasRecord(a) {
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, s.limits.Step)
			defer cancel()
			s.log.Warn("removing what has no record", "kind", a.Kind, "id", a.ID, "state", a.State)
			remove := s.opts.Engine.Remove
			if kind == engine.KindSandbox {
				remove = s.opts.Engine.RemoveSandbox
			}
			if err := s.call(ctx, a.ID, "remove what has no record", remove); err != nil {
				s.log.Error("cannot remove what has no record", "kind", a.Kind, "id", a.ID, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait() // each has reported its own error
}

func (s *Service) hasRecord(a engine.Actual) bool {
	var err error
	if a.Kind == engine.KindSandbox {
		_, err = s.sandboxes.Get(a.ID)
	} else {
		_, err = s.containers.Get(a.ID)
	}
	return err == nil
}

// gate holds up those who come while it is closed. The zero value is open.
type gate struct {
	mu     sync.Mutex
	closed chan struct{}
}

// close closes the gate and returns how to open it again.
func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	closed := make(chan struct{})
	g.closed = closed
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closed = nil
		close(closed)
	}
}

// pass waits while the gate is closed.
func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil {
		return nil
	}
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// exitPause is how long to wait before the engine is asked for its exits again.
const exitPause = time.Second

// Pauses before an exit that could not be recorded is recorded again.
const (
	exitRetryMin = 100 * time.Millisecond
	exitRetryMax = 5 * time.Second
)

// ends lets goroutines wait for the end of containers.
type ends struct {
	mu      *sync.Mutex
	waiting map[string]chan struct{}
}

func newEnds() ends { return ends{new(sync.Mutex), map[string]chan struct{}{}} }

// of returns a channel that is closed at the next tell of the id.
func (e ends) of(id string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	ch := e.waiting[id]
	if ch == nil {
		ch = make(chan struct{})
		e.waiting[id] = ch
	}
	return ch
}

// tell wakes those who wait for the id: its record says now that it has ended,
// or there is no record any more.
func (e ends) tell(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ch := e.waiting[id]; ch != nil {
		close(ch)
		delete(e.waiting, id)
	}
}

// listen records exits until ctx ends.
func (s *Service) listen(ctx context.Context, exits <-chan engine.Exit) {
	for exits != nil {
		select {
		case <-ctx.Done():
			return
		case exit, open := <-exits:
			if open {
				errs.Protect("record of the exit of "+exit.ContainerID, func() { s.recordExit(&exit) })
				continue
			}
			// The engine lost its own connection; it will tell what was missed.
			exits = s.listenAgain(ctx)
			s.background.Go(func() { errs.Protect("look at what the engine lost", func() { s.recheck(ctx) }) })
		}
	}
}

func (s *Service) listenAgain(ctx context.Context) <-chan engine.Exit {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(exitPause):
		}
		exits, err := s.opts.Engine.Exits(ctx)
		if err == nil {
			return exits
		}
		s.log.Error("cannot listen to the engine's exits, will try again", "err", err)
	}
}

// recordExit writes the first exit of a container into its record. It never
// blocks for long: there is one listener for all containers.
func (s *Service) recordExit(exit *engine.Exit) {
	id := exit.ContainerID
	if _, err := s.sandboxes.Get(id); err == nil {
		s.sandboxDied(id, exit)
		return
	}
	recorded := false
	rec, err := s.containers.Update(id, func(r *ContainerRecord) error {
		if r.State == ContainerExited || r.State == ContainerCreating {
			return errAlready // told twice, or a half-made one being torn down
		}
		reason, message := exitReason(exit)
		r.exit(exit.At, exit.Code, reason, message)
		recorded = true
		return nil
	})
	switch {
	case recorded && err == nil:
		s.ends.tell(id)
		s.tombstones.touch(id)
		s.log.Info("container exited", "container", id, "sandbox", rec.SandboxID, "code", rec.ExitCode, "reason", rec.Reason)
	case recorded:
		s.log.Error("cannot record an exit, will try again", "container", id, "code", exit.Code, "err", err)
		again := *exit
		s.exitRetries.later(id, func() { s.recordExit(&again) })
		return
	}
	s.exitRetries.done(id)
}

// errAlready leaves a record as it is.
var errAlready = fmt.Errorf("nothing to change: %w", errs.State)

func exitReason(exit *engine.Exit) (reason, message string) {
	switch {
	case exit.Reason != "":
		return exit.Reason, exit.Message
	case exit.OOMKilled:
		return reasonOOMKilled, exit.Message
	case exit.Code == 0:
		return reasonCompleted, exit.Message
	default:
		return reasonError, exit.Message
	}
}

// sandboxDied handles the end of a sandbox's own process, which takes the
// containers that share its PID namespace with it.
func (s *Service) sandboxDied(id string, exit *engine.Exit) {
	died := false
	rec, err := s.sandboxes.Update(id, func(r *SandboxRecord) error {
		if r.State != SandboxReady {
			return errAlready // it was asked to go
		}
		r.State, r.Message = SandboxStopping, fmt.Sprintf("its own process ended with code %d", exit.Code)
		died = true
		return nil
	})
	if !died {
		return
	}
	if err != nil {
		s.log.Error("cannot record the end of a sandbox, will try again", "sandbox", id, "err", err)
		again := *exit
		s.exitRetries.later(id, func() { s.recordExit(&again) })
		return
	}
	s.exitRetries.done(id)
	s.log.Error("sandbox is not ready any more", "sandbox", id, "pod", rec.name(), "why", rec.Message)
	s.pursue(context.Background(), s.stopSandboxRequest(rec))
}

// ended waits until the record says that the container has ended, or ctx ends.
func (s *Service) ended(ctx context.Context, id string) error {
	for {
		ch := s.ends.of(id)
		rec, err := s.containers.Get(id)
		if err != nil || !rec.alive() {
			s.ends.tell(id)
			return errs.IgnoreNotFound(err)
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settle gives a container that is known to be dead, and whose exit nobody told,
// the exit that berth tells then: unknown, with the cause.
func (s *Service) settle(id, why string) {
	s.recordExit(&engine.Exit{ContainerID: id, Code: engine.CodeUnknown, At: time.Now(), Reason: engine.ReasonUnknown, Message: why})
}

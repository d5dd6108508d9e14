package logpump

import (
	"fmt"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// slots bounds how many workers do something at the same time. Those that wait get their slots in
// the order of their calls.
type slots chan struct{}

// take waits for a slot; done ends the wait. what names it in the error.
func (s slots) take(done <-chan struct{}, what string) error {
	select {
	case s <- struct{}{}:
		return nil
	default:
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-done:
		return fmt.Errorf("the wait for %s was cancelled: %w", what, errs.State)
	}
}

func (s slots) free() { <-s }

// gateWidth is how many threads may wait at the same time for the disk of one log
// directory, which is that of one pod.
const gateWidth = 4

// gate bounds how many workers are in one log directory at once. When the directory
// hangs, the pod's other containers wait without a thread and without a buffer.
type gate struct {
	slots slots
	users int
	// subscribers bounds what waits for the pod's attached clients.
	subscribers budget
}

// enter waits for a slot; done ends the wait.
func (g *gate) enter(done <-chan struct{}) error { return g.slots.take(done, "the log directory") }

func (g *gate) leave() { g.slots.free() }

// gates has a gate for every log directory in use. A container without a log has its
// own gate, under its pump's directory.
type gates struct {
	mu    sync.Mutex
	byDir map[string]*gate
}

func (s *gates) take(dir string) *gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.byDir[dir]
	if g == nil {
		g = &gate{slots: make(slots, gateWidth)}
		s.byDir[dir] = g
	}
	g.users++
	return g
}

func (s *gates) release(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.byDir[dir]
	if g.users--; g.users == 0 {
		delete(s.byDir, dir)
	}
}

package logpump

import (
	"fmt"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// gateWidth is how many threads may wait at the same time for the disk of one log
// directory, which is that of one pod.
const gateWidth = 4

// gate bounds how many calls go to one log directory at once. When the directory
// hangs, the pod's other containers wait without a thread.
type gate struct {
	slots chan struct{}
	users int
	// subscribers bounds what waits for the pod's attached clients.
	subscribers budget
}

// enter waits for a slot; done ends the wait.
func (g *gate) enter(done <-chan struct{}) error {
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-done:
		return fmt.Errorf("the wait for the log directory was cancelled: %w", errs.State)
	}
}

func (g *gate) leave() { <-g.slots }

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
		g = &gate{slots: make(chan struct{}, gateWidth)}
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

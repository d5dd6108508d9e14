// Package podtest tests package pod on any engine: fakes of what it drives, and
// the looped tests in which call 1, 2, 3, ... fails, or is the last one before
// the daemon dies.
package podtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Script decides at every point of a run whether the run continues. Each call to
// the engine, the image store, the network and the disk has two points: before
// it takes effect and after.
type Script struct {
	mu      sync.Mutex
	n       int
	names   []string
	decide  func(n int, name string) error
	hangs   map[string]*Hang
	crashed chan struct{}
	inside  int // calls that are taking effect
}

// Hang is a point at which calls wait until they are released.
type Hang struct {
	// Reached is closed when the first call waits there.
	Reached  chan struct{}
	release  chan struct{}
	ignores  bool
	once     sync.Once
	released sync.Once
}

// Release lets all calls continue, also later ones.
func (h *Hang) Release() { h.released.Do(func() { close(h.release) }) }

// ErrInjected is what a call returns that a script lets fail, and ErrDead what
// every call returns once the daemon is dead; nothing takes effect then.
var (
	ErrInjected = errors.New("injected failure")
	ErrDead     = errors.New("this daemon is dead")
)

// NewScript returns a script that lets decide choose the error of each point,
// nil for none. decide may be nil.
func NewScript(decide func(n int, name string) error) *Script {
	return &Script{decide: decide, crashed: make(chan struct{})}
}

// FailAt lets the n-th point fail, counted from 1.
func FailAt(n int) *Script {
	return NewScript(func(i int, name string) error {
		if i == n {
			return fmt.Errorf("%w at point %d, %s", ErrInjected, n, name)
		}
		return nil
	})
}

// CrashAt kills the daemon at the n-th point: neither this call nor any later
// one does anything.
func CrashAt(n int) *Script {
	return NewScript(func(i int, _ string) error {
		if i == n {
			return ErrDead
		}
		return nil
	})
}

// HangAt makes calls wait at a point ("before network.Attach") until they are
// released or their context ends; with ignoreContext, calls ignore their context.
func (s *Script) HangAt(name string, ignoreContext bool) *Hang {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &Hang{Reached: make(chan struct{}), release: make(chan struct{}), ignores: ignoreContext}
	if s.hangs == nil {
		s.hangs = map[string]*Hang{}
	}
	s.hangs[name] = h
	return h
}

func (h *Hang) wait(ctx context.Context, crashed <-chan struct{}) error {
	h.once.Do(func() { close(h.Reached) })
	ended := ctx.Done()
	if h.ignores {
		ended = nil
	}
	select {
	case <-h.release:
		return nil
	case <-crashed:
		return ErrDead
	case <-ended:
		return ctx.Err()
	}
}

// Reached reports whether the run came as far as the n-th point.
func (s *Script) Reached(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n >= n
}

// Name is the name of the n-th point.
func (s *Script) Name(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 1 || n > len(s.names) {
		return "none"
	}
	return s.names[n-1]
}

// Crashed is closed when the daemon dies.
func (s *Script) Crashed() <-chan struct{} { return s.crashed }

// Kill is a crash from outside, at this moment.
func (s *Script) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.die()
}

func (s *Script) die() {
	select {
	case <-s.crashed:
	default:
		close(s.crashed)
	}
}

// Count returns how often a point was passed or hung at.
func (s *Script) Count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, passed := range s.names {
		if passed == name {
			count++
		}
	}
	return count
}

// at is one point.
func (s *Script) at(ctx context.Context, name string) error {
	hang, err := s.pass(name)
	if hang != nil && err == nil {
		return hang.wait(ctx, s.crashed)
	}
	return err
}

func (s *Script) pass(name string) (*Hang, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.crashed:
		return nil, ErrDead
	default:
	}
	s.n++
	s.names = append(s.names, name)
	hang := s.hangs[name]
	if s.decide == nil {
		return hang, nil
	}
	err := s.decide(s.n, name)
	if errors.Is(err, ErrDead) {
		s.die()
	}
	return hang, err
}

// run makes a call with its two points.
func run(ctx context.Context, s *Script, name string, fn func() error) error {
	if err := s.at(ctx, "before "+name); err != nil {
		return err
	}
	s.enter(1)
	err := fn()
	s.enter(-1)
	if err != nil {
		return err
	}
	return s.at(ctx, "after "+name)
}

func (s *Script) enter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside += n
}

// quiet reports whether no call is taking effect.
func (s *Script) quiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside == 0
}

// get is run for a function that returns a value.
func get[T any](ctx context.Context, s *Script, name string, fn func() (T, error)) (T, error) {
	var value, none T
	err := run(ctx, s, name, func() (err error) {
		value, err = fn()
		return err
	})
	if err != nil {
		return none, err
	}
	return value, nil
}

// alive ends when the daemon dies, for calls that last.
func (s *Script) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.crashed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

package probe

import (
	"context"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Shared makes calls into file systems for callers that must not wait for them, such as Status. There is one thread for
// each key, however many callers it has. The zero value is ready. All methods are safe for concurrent use.
type Shared[T any] struct {
	mu      sync.Mutex
	pending map[string]*call[T]
}

// call is one run, under way.
type call[T any] struct {
	began time.Time
	// done is closed when result is there. ok is false after a panic.
	done   chan struct{}
	result T
	ok     bool
}

// Ask runs ask on a thread of its own, and returns its result. Concurrent callers with the same key share one run and
// its result, which they must not change. answered is false when ctx ends first, or when the run is older than wait: only
// the first callers of a run that hangs wait for it.
func (s *Shared[T]) Ask(ctx context.Context, key string, wait time.Duration, ask func() T) (result T, answered bool) {
	c := s.join(key, ask)
	timer := time.NewTimer(time.Until(c.began.Add(wait)))
	defer timer.Stop()
	select {
	case <-c.done:
		return c.result, c.ok
	default:
	}
	select {
	case <-c.done:
		return c.result, c.ok
	case <-ctx.Done():
	case <-timer.C:
	}
	return result, false
}

// join returns the run of a key that is under way, or begins one.
func (s *Shared[T]) join(key string, ask func() T) *call[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.pending[key]; c != nil {
		return c
	}
	c := &call[T]{began: time.Now(), done: make(chan struct{})}
	if s.pending == nil {
		s.pending = map[string]*call[T]{}
	}
	s.pending[key] = c
	go errs.Protect(key, func() {
		defer func() {
			s.mu.Lock()
			delete(s.pending, key)
			s.mu.Unlock()
			close(c.done)
		}()
		c.result = ask()
		c.ok = true
	})
	return c
}

// Package keyed coordinates goroutines that work on the same object: a container, a
// layer, a volume. A key names the object. For each key
//
//   - Mutex has one lock, and waiting for it ends with a context;
//   - Calls runs one call at a time, and a caller can leave a call that does not return;
//   - Flights runs a function once and shares its result among all callers.
//
// The rules are the same for all three. A key is free again when its function has
// returned, never before: a function that hangs blocks only its own key. A
// panic becomes the error of that function (see errs.Guard) and frees the key. Nothing
// is kept for an unused key. All methods are safe for concurrent use.
//
// Where callers share a run that goes on without them, golang.org/x/sync/singleflight
// does; its function needs errs.Guard.
package keyed

import (
	"context"
	"sync"
	"time"
)

// Mutex has a lock for every key. The zero value is ready.
type Mutex struct {
	mu   sync.Mutex
	held map[string]*holder
}

// holder has the lock of one key.
type holder struct {
	what     string // what it does, for errors
	since    time.Time
	released chan struct{}
}

// Lock waits until the key is free and takes it. When ctx ends first, Lock returns its
// cause. The end of ctx ends the wait only: a key that is free is taken in any case.
// unlock is called once.
func (m *Mutex) Lock(ctx context.Context, key string) (unlock func(), err error) {
	unlock, other := m.lock(ctx, key, "")
	if other != nil {
		return nil, context.Cause(ctx)
	}
	return unlock, nil
}

// lock is Lock for a holder that says what it does. When ctx ends first, it returns the
// holder of the key.
func (m *Mutex) lock(ctx context.Context, key, what string) (unlock func(), other *holder) {
	for {
		if other = m.tryLock(key, what); other == nil {
			return func() { m.unlock(key) }, nil
		}
		select {
		case <-other.released:
		case <-ctx.Done():
			return nil, other
		}
	}
}

// tryLock takes the key, or returns its holder.
func (m *Mutex) tryLock(key, what string) (other *holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.held[key]; other != nil {
		return other
	}
	if m.held == nil {
		m.held = map[string]*holder{}
	}
	m.held[key] = &holder{what: what, since: time.Now(), released: make(chan struct{})}
	return nil
}

func (m *Mutex) unlock(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.held[key].released)
	delete(m.held, key)
}

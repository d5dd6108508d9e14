// Package retry runs failed work again later.
package retry

import (
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Timers runs failed work again, by id, with growing pauses. All methods are safe for
// concurrent use.
type Timers struct {
	first, longest time.Duration
	mu             sync.Mutex
	closed         bool
	pending        map[string]*pending
}

type pending struct {
	pause time.Duration
	timer *time.Timer
}

// New returns Timers whose first pause is first and whose longest is longest.
func New(first, longest time.Duration) *Timers {
	return &Timers{first: first, longest: longest, pending: map[string]*pending{}}
}

// Later runs again after a pause that doubles each time until Done is called.
func (r *Timers) Later(id string, again func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	next, seen := r.pending[id]
	if !seen {
		next = &pending{pause: r.first}
		r.pending[id] = next
	} else {
		next.timer.Stop()
		next.pause = min(2*next.pause, r.longest)
	}
	next.timer = time.AfterFunc(next.pause, func() { errs.Protect("retry of "+id, again) })
}

// Done removes an id whose work is complete.
func (r *Timers) Done(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if next, seen := r.pending[id]; seen {
		next.timer.Stop()
		delete(r.pending, id)
	}
}

// Close stops every timer; Later does nothing from then on.
func (r *Timers) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for id, next := range r.pending {
		next.timer.Stop()
		delete(r.pending, id)
	}
}

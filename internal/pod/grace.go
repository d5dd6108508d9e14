package pod

import (
	"sync"
	"time"
)

// gracePeriods has, for each container that is stopping, when its grace period ends.
type gracePeriods struct {
	mu      *sync.Mutex
	pending map[string]*grace
}

type grace struct {
	by      time.Time
	changed chan struct{}
	// holders counts the stops of the container, jobs and requests. The last one removes
	// the grace period.
	holders int
}

func newGracePeriods() gracePeriods { return gracePeriods{new(sync.Mutex), map[string]*grace{}} }

// hold makes the container's grace period end after timeout, if not sooner. It is kept until
// each caller has called its release once.
func (g gracePeriods) hold(id string, timeout time.Duration) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pending[id]
	if p == nil {
		p = &grace{by: time.Now().Add(timeout), changed: make(chan struct{})}
		g.pending[id] = p
	}
	p.shorten(timeout)
	p.holders++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if p.holders--; p.holders == 0 {
			delete(g.pending, id)
		}
	}
}

// shorten needs the lock.
func (p *grace) shorten(timeout time.Duration) {
	by := time.Now().Add(timeout)
	if !by.Before(p.by) {
		return
	}
	close(p.changed)
	p.by, p.changed = by, make(chan struct{})
}

// get returns when the grace period ends, and a channel that is closed when that changes.
// The caller holds the grace period.
func (g gracePeriods) get(id string) (by time.Time, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pending[id]
	return p.by, p.changed
}

// end ends the grace period of a container that is stopping, if it has one.
func (g gracePeriods) end(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pending[id]; p != nil {
		p.shorten(0)
	}
}

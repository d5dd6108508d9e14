package pod

import (
	"sync"
	"time"
)

// graces holds, for each container that is stopping, when its patience ends.
type graces struct {
	mu      *sync.Mutex
	pending map[string]*grace
}

type grace struct {
	by      time.Time
	changed chan struct{}
	// holders are the stops of the container, jobs and requests. The last one takes it
	// away.
	holders int
}

func newGraces() graces { return graces{new(sync.Mutex), map[string]*grace{}} }

// hold makes the container's patience end after timeout, if not sooner, for as long as
// somebody holds it. release is called once.
func (g graces) hold(id string, timeout time.Duration) (release func()) {
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

// get returns when the patience ends, and a channel that is closed when that changes.
// The caller holds it.
func (g graces) get(id string) (by time.Time, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pending[id]
	return p.by, p.changed
}

// end ends the patience of a container that is stopping now, if one is.
func (g graces) end(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pending[id]; p != nil {
		p.shorten(0)
	}
}

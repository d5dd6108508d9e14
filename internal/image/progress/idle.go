package progress

import (
	"context"
	"sync"
)

// busy counts pulls that run. The zero value is ready.
type busy struct {
	mu      sync.Mutex
	running int
	// idle is closed when the last pull ends, nil while none runs.
	idle chan struct{}
	// began are called when a pull begins, each once.
	began map[*func()]struct{}
}

// begin counts a pull until end is called.
func (b *busy) begin() (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == 0 {
		b.idle = make(chan struct{})
	}
	b.running++
	for fn := range b.began {
		(*fn)()
	}
	b.began = nil
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.running--; b.running == 0 {
			close(b.idle)
			b.idle = nil
		}
	}
}

// OnPull has fn called once when a pull begins, at once if one runs. fn must not block. After stop it is not
// called.
func (p *Pulls) OnPull(fn func()) (stop func()) {
	b := &p.busy
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running > 0 {
		fn()
		return func() {}
	}
	if b.began == nil {
		b.began = map[*func()]struct{}{}
	}
	b.began[&fn] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.began, &fn)
	}
}

// AwaitIdle returns when no pull runs, or with the cause of ctx when that ends first. A pull may begin
// right after it.
func (p *Pulls) AwaitIdle(ctx context.Context) error {
	for {
		p.busy.mu.Lock()
		idle := p.busy.idle
		p.busy.mu.Unlock()
		if idle == nil {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

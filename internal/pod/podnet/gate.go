package podnet

import (
	"context"
	"sync"
)

// gate blocks callers of pass while it is closed. The zero value is open.
type gate struct {
	mu     sync.Mutex
	closed chan struct{}
}

// close closes the gate and returns the function that opens it again.
func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	closed := make(chan struct{})
	g.closed = closed
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closed = nil
		close(closed)
	}
}

// pass waits while the gate is closed.
func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil {
		return nil
	}
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

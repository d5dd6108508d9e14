// Package background runs what an image store does beside its requests: work that continues
// after they return, and the removal of large directories. Closing the store stops it.
package background

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// CloseTimeout is how long Close waits for a removal in progress. The next start continues it.
const CloseTimeout = 2 * time.Second

// Group is work that ends when the store closes. Its methods are safe for concurrent use.
type Group struct {
	// CloseTimeout is how long the contexts of GoUntilTimeout and of the trash last after
	// Close begins. Set it before Close.
	CloseTimeout time.Duration

	// closing is closed when Close has been called, ended when no work is left after that.
	closing, ended chan struct{}

	mu      sync.Mutex
	running int
	closed  bool
}

// NewGroup makes a group with the default CloseTimeout.
func NewGroup() *Group {
	return &Group{CloseTimeout: CloseTimeout, closing: make(chan struct{}), ended: make(chan struct{})}
}

// Close stops the work and waits for it. A second call returns when the first does. Nothing begins after
// Close has returned: what the work uses can be closed then.
func (g *Group) Close() {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		close(g.closing)
		if g.running == 0 {
			close(g.ended)
		}
	}
	g.mu.Unlock()
	<-g.ended
}

// enter counts one more piece of work. It returns false if Close may have returned. Work that Close waits
// for may begin more.
func (g *Group) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && g.running == 0 {
		return false
	}
	g.running++
	return true
}

// leave undoes one enter.
func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.closed && g.running == 0 {
		close(g.ended)
	}
}

// Begin returns a context that Close cancels. Close waits until end is called. The error is of
// kind Unavailable if the group is closed.
func (g *Group) Begin(ctx context.Context) (_ context.Context, end func(), err error) {
	select {
	case <-g.closing:
		return nil, nil, errClosed()
	default:
	}
	if !g.enter() {
		return nil, nil, errClosed()
	}
	ctx, cancel := g.untilClosed(ctx)
	return ctx, func() {
		cancel()
		g.leave()
	}, nil
}

func errClosed() error { return fmt.Errorf("the image store is closed: %w", errs.Unavailable) }

// Go runs fn in the background; Close cancels its context and waits for it. After Close fn does not run:
// the next start of the store does what is left.
func (g *Group) Go(fn func(ctx context.Context)) {
	g.run(fn, func() (context.Context, context.CancelFunc) { return g.untilClosed(context.Background()) })
}

// GoUntilTimeout runs fn in the background, as Go does. Its context ends CloseTimeout after Close
// begins.
func (g *Group) GoUntilTimeout(fn func(ctx context.Context)) { g.run(fn, g.afterCloseTimeout) }

func (g *Group) run(fn func(ctx context.Context), until func() (context.Context, context.CancelFunc)) {
	if !g.enter() {
		return
	}
	go func() {
		defer g.leave()
		ctx, cancel := until()
		defer cancel()
		protect(ctx, fn)
	}()
}

func protect(ctx context.Context, fn func(ctx context.Context)) {
	errs.Protect("work of the image store in the background", func() { fn(ctx) })
}

// untilClosed returns a context that also ends when the group closes.
func (g *Group) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-g.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// afterCloseTimeout returns a context that ends CloseTimeout after Close begins.
func (g *Group) afterCloseTimeout() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-g.closing:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(g.CloseTimeout):
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

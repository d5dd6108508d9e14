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

	running sync.WaitGroup
	// closing is closed when Close has been called.
	closing chan struct{}
	close   func()
}

// NewGroup makes a group with the default CloseTimeout.
func NewGroup() *Group {
	g := &Group{CloseTimeout: CloseTimeout, closing: make(chan struct{})}
	g.close = sync.OnceFunc(func() {
		close(g.closing)
		g.running.Wait()
	})
	return g
}

// Close stops the work and waits for it. A second call returns when the first does.
func (g *Group) Close() { g.close() }

// Begin returns a context that Close cancels. Close waits until end is called. The error is of
// kind Unavailable if the group is closed.
func (g *Group) Begin(ctx context.Context) (_ context.Context, end func(), err error) {
	select {
	case <-g.closing:
		return nil, nil, fmt.Errorf("the image store is closed: %w", errs.Unavailable)
	default:
	}
	g.running.Add(1)
	ctx, cancel := g.untilClosed(ctx)
	return ctx, func() {
		cancel()
		g.running.Done()
	}, nil
}

// Go runs fn in the background; Close cancels its context and waits for it.
func (g *Group) Go(fn func(ctx context.Context)) {
	g.running.Go(func() {
		ctx, cancel := g.untilClosed(context.Background())
		defer cancel()
		protect(ctx, fn)
	})
}

// GoUntilTimeout runs fn in the background, as Go does. Its context ends CloseTimeout after Close
// begins.
func (g *Group) GoUntilTimeout(fn func(ctx context.Context)) {
	g.running.Go(func() {
		ctx, cancel := g.afterCloseTimeout()
		defer cancel()
		protect(ctx, fn)
	})
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

// Package background has what an image store does beside its requests: work that goes on
// when they have returned, and the removal of large directories. Closing the store ends it.
package background

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Patience is how long Close waits for a removal under way. The next start goes on.
const Patience = 2 * time.Second

// Group is work that ends when the store closes. Its methods are safe for concurrent use.
type Group struct {
	// Patience is how long the contexts of Linger and of the trash last after Close has
	// begun. Set it before Close.
	Patience time.Duration

	running sync.WaitGroup
	// closing is closed when Close has been called.
	closing chan struct{}
	close   func()
}

// NewGroup makes a group with the usual Patience.
func NewGroup() *Group {
	g := &Group{Patience: Patience, closing: make(chan struct{})}
	g.close = sync.OnceFunc(func() {
		close(g.closing)
		g.running.Wait()
	})
	return g
}

// Close ends what goes on and waits for it. A second call returns when the first does.
func (g *Group) Close() { g.close() }

// Begin lets Close end what runs in ctx, and wait for it until end is called. Unavailable
// when the group is closed.
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

// Linger runs fn in the background, as Go does, with a context that ends some time after
// Close has begun.
func (g *Group) Linger(fn func(ctx context.Context)) {
	g.running.Go(func() {
		ctx, cancel := g.afterPatience()
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

// afterPatience returns a context that ends some time after the group has begun to close.
func (g *Group) afterPatience() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-g.closing:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(g.Patience):
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

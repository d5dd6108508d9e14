// Package once keeps callers that want the same thing from doing it twice: either
// all wait for one run (Flights), or one after the other (Keys).
package once

import (
	"context"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// Flights does what several callers want at the same time once. A run has a result
// R and tells its callers of progress P. The zero value is ready.
type Flights[R, P any] struct {
	mu  sync.Mutex
	all map[string]*flight[R, P]
}

// flight is one thing being done, and who waits for it.
type flight[R, P any] struct {
	cancel context.CancelFunc
	done   chan struct{}
	result R
	err    error

	mu      sync.Mutex
	waiters map[int]func(P)
	next    int
	// last is the progress told last, for callers that join later.
	last *P
}

// Do runs fn, or waits for the run that has the same key. The run ends when its
// last caller has gone. progress may be nil.
func (f *Flights[R, P]) Do(ctx context.Context, key string, progress func(P), fn func(ctx context.Context, report func(P)) (R, error)) (R, error) {
	fl, leave := f.join(ctx, key, progress, fn)
	select {
	case <-fl.done:
		leave()
		return fl.result, fl.err
	case <-ctx.Done():
		if last := leave(); last {
			// What the run made is gone when its last caller returns.
			<-fl.done
		}
		var none R
		return none, context.Cause(ctx)
	}
}

// Callers is how many callers wait now.
func (f *Flights[R, P]) Callers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, fl := range f.all {
		fl.mu.Lock()
		n += len(fl.waiters)
		fl.mu.Unlock()
	}
	return n
}

func (f *Flights[R, P]) join(ctx context.Context, key string, progress func(P), fn func(context.Context, func(P)) (R, error)) (*flight[R, P], func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.all[key]
	if fl == nil {
		// Each caller may leave: the run outlives the context that began it.
		runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		fl = &flight[R, P]{cancel: cancel, done: make(chan struct{}), waiters: map[int]func(P){}}
		if f.all == nil {
			f.all = map[string]*flight[R, P]{}
		}
		f.all[key] = fl
		go f.run(runCtx, key, fl, fn)
	}
	number := fl.next
	fl.next++
	fl.watch(number, progress)
	return fl, func() bool { return f.leave(key, fl, number) }
}

func (f *Flights[R, P]) run(ctx context.Context, key string, fl *flight[R, P], fn func(context.Context, func(P)) (R, error)) {
	fl.err = errs.Guard(key, func() (err error) {
		fl.result, err = fn(ctx, fl.report)
		return err
	})
	f.mu.Lock()
	if f.all[key] == fl {
		delete(f.all, key)
	}
	f.mu.Unlock()
	fl.cancel()
	close(fl.done)
}

// leave cancels the run when nobody waits for it any more; who comes next starts
// anew. It tells whether the caller was the last.
func (f *Flights[R, P]) leave(key string, fl *flight[R, P], number int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.mu.Lock()
	delete(fl.waiters, number)
	left := len(fl.waiters)
	fl.mu.Unlock()
	if left > 0 {
		return false
	}
	fl.cancel()
	if f.all[key] == fl {
		delete(f.all, key)
	}
	return true
}

func (fl *flight[R, P]) watch(number int, progress func(P)) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.waiters[number] = progress
	if progress != nil && fl.last != nil {
		progress(*fl.last)
	}
}

func (fl *flight[R, P]) report(p P) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.last = &p
	for _, progress := range fl.waiters {
		if progress != nil {
			progress(p)
		}
	}
}

package keyed

import (
	"context"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// Flights shares one run of a function among all callers that want the same at the same
// time. A run ends early when all its callers have left. V is a run's result, and S what
// it shares with its callers before it has one, such as its progress. The zero value is
// ready.
type Flights[S, V any] struct {
	mu  sync.Mutex
	all map[string]*Flight[S, V]
}

// Flight is one run and its callers.
type Flight[S, V any] struct {
	// Shared begins as the zero value of S.
	Shared S

	flights *Flights[S, V]
	cancel  context.CancelFunc
	callers int // guarded by Flights.mu; 0 is final
	done    chan struct{}
	value   V // value and err are set before done is closed
	err     error
}

// Join joins the run of the key, or starts one, which calls fn. Every Join that succeeds
// is paired with one Leave. The context of fn has the values of the ctx that started it,
// and ends when the last caller leaves.
//
// A run whose callers have all left is not joined: Join waits until it has returned, or
// returns the cause of ctx when that ends first.
func (f *Flights[S, V]) Join(ctx context.Context, key string, fn func(ctx context.Context, shared *S) (V, error)) (*Flight[S, V], error) {
	for {
		flight, joined := f.join(ctx, key, fn)
		if joined {
			return flight, nil
		}
		select {
		case <-flight.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// join returns the flight of the key, and whether the caller is on it.
func (f *Flights[S, V]) join(ctx context.Context, key string, fn func(context.Context, *S) (V, error)) (_ *Flight[S, V], joined bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if flight := f.all[key]; flight != nil {
		if flight.callers == 0 {
			return flight, false
		}
		flight.callers++
		return flight, true
	}
	// Each caller may leave: the run outlives the context that began it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	flight := &Flight[S, V]{flights: f, cancel: cancel, callers: 1, done: make(chan struct{})}
	if f.all == nil {
		f.all = map[string]*Flight[S, V]{}
	}
	f.all[key] = flight
	go flight.run(ctx, key, fn)
	return flight, true
}

func (f *Flight[S, V]) run(ctx context.Context, key string, fn func(context.Context, *S) (V, error)) {
	defer f.cancel()
	f.err = errs.Guard(key, func() (err error) {
		f.value, err = fn(ctx, &f.Shared)
		return err
	})
	f.flights.mu.Lock()
	delete(f.flights.all, key)
	f.flights.mu.Unlock()
	close(f.done)
}

// Done is closed when the run has returned.
func (f *Flight[S, V]) Done() <-chan struct{} { return f.done }

// Result is what the run returned. It is known once Done is closed.
func (f *Flight[S, V]) Result() (V, error) { return f.value, f.err }

// Leave ends what Join began. The last caller that leaves cancels the run, without
// waiting for it to return; Leave reports whether this one was the last.
func (f *Flight[S, V]) Leave() (last bool) {
	f.flights.mu.Lock()
	defer f.flights.mu.Unlock()
	f.callers--
	if f.callers > 0 {
		return false
	}
	f.cancel()
	return true
}

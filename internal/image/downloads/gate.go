// Package downloads bounds what all pulls of a node download together: how many layers at a time, and how many bytes
// a second. Downloads for pods go before those in the background. It knows neither registries nor a store.
package downloads

import (
	"container/list"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits are the bounds of a Gate.
type Limits struct {
	// Places is how many downloads may run at a time, 0 for any number.
	Places int
	// Rate is how many bytes a second all downloads may read together, 0 for any number.
	Rate int64
	// Memory is how many bytes of parts may be in memory that are fetched ahead of what is written.
	Memory int64
}

type backgroundKey struct{}

// InBackground returns a context whose downloads are for no pod. In a Gate they go after all others.
func InBackground(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether a context is one of InBackground, or made from one.
func IsBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }

// Gate bounds downloads. Its methods are safe for concurrent use. A nil Gate has no bounds.
type Gate struct {
	mu     sync.Mutex
	places int
	used   int
	// pods and background are the queues for a place. Their elements are channels, which are closed with the grant.
	pods, background list.List
	// memory bounds held, the bytes of all buffers in use. buffers are those that wait for use.
	memory, held int64
	buffers      sync.Pool

	limiter *rate.Limiter
}

// New returns a Gate.
func New(limits Limits) *Gate {
	g := &Gate{limiter: rate.NewLimiter(rate.Inf, chunk)}
	g.Configure(limits)
	return g
}

// chunk is how many bytes wait for the rate at once. A download that goes first waits for one chunk of each of the
// others at most.
const chunk = 64 << 10

// Configure makes other limits hold, also for downloads that wait. A lower bound ends no download.
func (g *Gate) Configure(limits Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places, g.memory = limits.Places, limits.Memory
	if limits.Rate > 0 {
		// What a tenth of a second allows makes up for timers that fire late.
		g.limiter.SetBurst(int(max(limits.Rate/10, chunk)))
		g.limiter.SetLimit(rate.Limit(limits.Rate))
	} else {
		g.limiter.SetLimit(rate.Inf)
	}
	g.grant()
}

// Acquire waits for a place. Waiting downloads for pods get free places before those in the background, and within
// each class the order is that of the calls. If the download has to wait, Acquire calls waits, and at the end of the
// wait what waits has returned. waits may be nil. The caller calls release once when its download has ended. The
// error is the cause of ctx; no place is taken then.
func (g *Gate) Acquire(ctx context.Context, waits func() (end func())) (release func(), err error) {
	if g == nil {
		return func() {}, nil
	}
	g.mu.Lock()
	if g.isFree() { // so nobody waits
		g.used++
		g.mu.Unlock()
		return g.release, nil
	}
	queue := &g.pods
	if IsBackground(ctx) {
		queue = &g.background
	}
	granted := make(chan struct{})
	place := queue.PushBack(granted)
	g.mu.Unlock()

	if waits != nil {
		defer waits()()
	}
	select {
	case <-granted:
		return g.release, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-granted: // meanwhile: the place goes to the next one
		g.used--
		g.grant()
	default:
		queue.Remove(place)
	}
	return nil, context.Cause(ctx)
}

// isFree reports whether a place is free. g.mu is held.
func (g *Gate) isFree() bool { return g.places == 0 || g.used < g.places }

// grant gives free places to those that wait. g.mu is held.
func (g *Gate) grant() {
	for g.isFree() {
		queue := &g.pods
		if queue.Len() == 0 {
			queue = &g.background
		}
		first := queue.Front()
		if first == nil {
			return
		}
		g.used++
		close(queue.Remove(first).(chan struct{}))
	}
}

func (g *Gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used--
	g.grant()
}

// Room is what a part of a download needs that is fetched ahead: a place, and memory.
type Room struct {
	// Buffer is for the bytes of the part. Its content is undefined.
	Buffer []byte
	gate   *Gate
}

// Ahead takes room for n bytes. It does not wait: nil if no place is free, or too little memory. The caller calls Leave
// when the request has ended, and then Free when the bytes are read.
func (g *Gate) Ahead(n int) *Room {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isFree() || g.held+int64(n) > g.memory {
		return nil
	}
	g.used++
	g.held += int64(n)
	buffer, _ := g.buffers.Get().(*[]byte)
	if buffer == nil || cap(*buffer) < n {
		buffer = new(make([]byte, n))
	}
	return &Room{(*buffer)[:n], g}
}

// Leave frees the place.
func (r *Room) Leave() { r.gate.release() }

// Free frees the memory. Nobody uses the buffer any more.
func (r *Room) Free() {
	r.gate.mu.Lock()
	defer r.gate.mu.Unlock()
	r.gate.held -= int64(len(r.Buffer))
	r.gate.buffers.Put(&r.Buffer)
}

// Read counts n bytes that a download has read, and waits until the rate allows them. In the background it
// gets what downloads for pods leave of the rate. waits is as in Acquire; Read may call it several times. The
// error is the cause of ctx.
func (g *Gate) Read(ctx context.Context, n int, waits func() (end func())) error {
	if g == nil || g.limiter.Limit() == rate.Inf {
		return nil
	}
	take := g.take
	if IsBackground(ctx) {
		take = g.takeLast
	}
	for n > 0 {
		piece := min(n, chunk)
		if err := take(ctx, piece, waits); err != nil {
			return err
		}
		n -= piece
	}
	return nil
}

// take waits for n bytes of the rate, at most chunk.
func (g *Gate) take(ctx context.Context, n int, waits func() (end func())) error {
	reserved := g.limiter.ReserveN(time.Now(), n)
	delay := reserved.Delay()
	if delay <= 0 {
		return nil
	}
	if waits != nil {
		defer waits()()
	}
	err := sleep(ctx, delay)
	if err != nil {
		reserved.Cancel()
	}
	return err
}

// takeLast is take in the background. It reserves nothing: what downloads for pods wait for is reserved, and they
// take it first.
func (g *Gate) takeLast(ctx context.Context, n int, waits func() (end func())) error {
	if g.limiter.AllowN(time.Now(), n) {
		return nil
	}
	if waits != nil {
		defer waits()()
	}
	for now := time.Now(); !g.limiter.AllowN(now, n); now = time.Now() {
		missing := (float64(n) - g.limiter.TokensAt(now)) / float64(g.limiter.Limit())
		if err := sleep(ctx, max(time.Duration(missing*float64(time.Second)), time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// sleep returns after a time, or with the cause of ctx when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Turn is how one download takes part in a Gate. The zero value has no bounds.
type Turn struct {
	Gate *Gate
	// Waits is called when the download begins to wait, and what it returns at the end of the wait. nil: nothing is.
	Waits func() (end func())
}

// Acquire is that of the Gate.
func (t Turn) Acquire(ctx context.Context) (release func(), err error) {
	return t.Gate.Acquire(ctx, t.Waits)
}

// Read is that of the Gate.
func (t Turn) Read(ctx context.Context, n int) error { return t.Gate.Read(ctx, n, t.Waits) }

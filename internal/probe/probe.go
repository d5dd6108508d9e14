// Package probe makes calls to file systems that may hang (a dead network mount, a
// hung FUSE daemon) without blocking the caller.
//
// A call that hangs keeps its thread until the kernel returns; nothing can end it
// earlier. So they are bounded: one thread for each pending probe, however many
// callers it has, and a limit in all.
package probe

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

const (
	defaultTimeout = 10 * time.Second
	defaultLimit   = 256
)

// Pool runs probes. The zero value is ready. All methods are safe for concurrent use.
type Pool struct {
	// Timeout is how long Ask waits. 0 is 10 seconds.
	Timeout time.Duration
	// Limit is how many probes may be pending at a time. 0 is 256.
	Limit int

	mu      sync.Mutex
	pending map[question]*call
}

// question is a key and the type of its answer: the same words may have answers of several types.
type question struct {
	key    string
	answer reflect.Type
}

// call is one run of a probe.
type call struct {
	began time.Time
	// done is closed when value and err are there.
	done  chan struct{}
	value any
	err   error
}

// Ask is AskWithin with the timeout of the pool.
func Ask[T any](ctx context.Context, p *Pool, key string, ask func() (T, error)) (T, error) {
	return AskWithin(ctx, p, cmp.Or(p.Timeout, defaultTimeout), key, ask)
}

// AskWithin runs ask on its own thread and returns its result. Concurrent callers with the
// same key share one run and its result, which they must not change: a key names the
// verb and all that ask depends on ("look at /mnt"). Kind Unavailable, with the key,
// when the run is older than wait and ask has not returned: only the first callers of a
// run that hangs wait for it. Kind Exhausted when too many others hang already.
func AskWithin[T any](ctx context.Context, p *Pool, wait time.Duration, key string, ask func() (T, error)) (T, error) {
	var zero T
	c, err := p.join(question{key, reflect.TypeFor[T]()}, func() (any, error) { return ask() })
	if err != nil {
		return zero, err
	}
	timer := time.NewTimer(time.Until(c.began.Add(wait)))
	defer timer.Stop()
	select {
	case <-c.done:
		return result[T](c)
	default: // a result counts, even when the run is older than wait
	}
	select {
	case <-c.done:
		return result[T](c)
	case <-ctx.Done():
		return zero, fmt.Errorf("cannot %s: %w", key, ctx.Err())
	case <-timer.C:
		return zero, fmt.Errorf("cannot %s: the file system has not answered for %s: %w", key, wait, errs.Unavailable)
	}
}

func result[T any](c *call) (T, error) {
	value, _ := c.value.(T) // none after a panic
	return value, c.err
}

// join returns the run of a key that is under way, or starts one, unless too many probes are pending.
func (p *Pool) join(q question, ask func() (any, error)) (*call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.pending[q]; c != nil {
		return c, nil
	}
	if n := len(p.pending); n >= cmp.Or(p.Limit, defaultLimit) {
		return nil, fmt.Errorf("cannot %s: %d calls into file systems hang already: %w", q.key, n, errs.Exhausted)
	}
	c := &call{began: time.Now(), done: make(chan struct{})}
	if p.pending == nil {
		p.pending = map[question]*call{}
	}
	p.pending[q] = c
	go func() {
		c.err = errs.Guard(q.key, func() (err error) {
			c.value, err = ask()
			return err
		})
		p.mu.Lock()
		delete(p.pending, q)
		p.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

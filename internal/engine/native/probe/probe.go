// Package probe asks the file system what may never answer (a dead network mount,
// a hung FUSE daemon) without making anybody wait for it.
//
// A call that hangs keeps its thread until the kernel lets go of it; nothing can
// end it earlier. So they are bounded: one thread for each question that is
// pending, however often it is asked, and a limit in all.
package probe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Pool runs questions. All methods are safe for concurrent use.
type Pool struct {
	timeout time.Duration
	limit   int

	mu      sync.Mutex
	pending map[string]*question
}

type question struct {
	done  chan struct{}
	value any
	err   error
}

// New returns a pool whose questions may take timeout each, limit at a time.
func New(timeout time.Duration, limit int) *Pool {
	return &Pool{timeout: timeout, limit: limit, pending: map[string]*question{}}
}

// Ask runs ask on a thread of its own and returns what it returns. Askers of the
// same key at the same time share one run and its answer, which nobody may change: a
// key names the verb and all that ask depends on ("look at /mnt"). Kind Unavailable, naming the key, when no answer came in
// time; Exhausted when too many others hang already.
func Ask[T any](ctx context.Context, p *Pool, key string, ask func() (T, error)) (T, error) {
	var zero T
	q, err := p.start(key, func() (any, error) { return ask() })
	if err != nil {
		return zero, err
	}
	timer := time.NewTimer(p.timeout)
	defer timer.Stop()
	select {
	case <-q.done:
		if q.err != nil {
			return zero, q.err
		}
		return q.value.(T), nil
	case <-ctx.Done():
		return zero, fmt.Errorf("cannot %s: %w", key, ctx.Err())
	case <-timer.C:
		return zero, fmt.Errorf("cannot %s: the file system has not answered for %s: %w", key, p.timeout, errs.Unavailable)
	}
}

func (p *Pool) start(key string, ask func() (any, error)) (*question, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q, ok := p.pending[key]; ok {
		return q, nil
	}
	if len(p.pending) >= p.limit {
		return nil, fmt.Errorf("cannot %s: %d calls into file systems hang already: %w", key, len(p.pending), errs.Exhausted)
	}
	q := &question{done: make(chan struct{})}
	p.pending[key] = q
	go func() {
		q.err = errs.Guard(key, func() (err error) {
			q.value, err = ask()
			return err
		})
		p.mu.Lock()
		delete(p.pending, key)
		p.mu.Unlock()
		close(q.done)
	}()
	return q, nil
}

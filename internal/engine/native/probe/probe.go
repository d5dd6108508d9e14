// Package probe asks the file system what may never answer (a dead network mount,
// a hung FUSE daemon) without blocking the caller.
//
// A call that hangs keeps its thread until the kernel lets go of it; nothing can
// end it earlier. So they are bounded: one thread for each question that is
// pending, however often it is asked, and a limit in all.
package probe

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthrun/berth/internal/errs"
)

// Pool runs questions. All methods are safe for concurrent use.
type Pool struct {
	timeout time.Duration
	// threads has an element for each question that is pending.
	threads chan struct{}
	pending singleflight.Group
}

// New returns a pool whose questions may take timeout each, limit at a time.
func New(timeout time.Duration, limit int) *Pool {
	return &Pool{timeout: timeout, threads: make(chan struct{}, limit)}
}

// Ask runs ask on a thread of its own and returns what it returns. Askers of the
// same key at the same time share one run and its answer, which nobody may change: a
// key names the verb and all that ask depends on ("look at /mnt"). Kind Unavailable,
// naming the key, when no answer came in time; Exhausted when too many others hang
// already.
func Ask[T any](ctx context.Context, p *Pool, key string, ask func() (T, error)) (T, error) {
	var zero T
	answered := p.pending.DoChan(key, func() (any, error) { return run(p, key, ask) })
	timer := time.NewTimer(p.timeout)
	defer timer.Stop()
	select {
	case answer := <-answered:
		if answer.Err != nil {
			return zero, answer.Err
		}
		return answer.Val.(T), nil
	case <-ctx.Done():
		return zero, fmt.Errorf("cannot %s: %w", key, ctx.Err())
	case <-timer.C:
		return zero, fmt.Errorf("cannot %s: the file system has not answered for %s: %w", key, p.timeout, errs.Unavailable)
	}
}

// run asks, unless too many questions hang. singleflight would end the process for a
// panic, so run guards ask.
func run[T any](p *Pool, key string, ask func() (T, error)) (value T, err error) {
	select {
	case p.threads <- struct{}{}:
		defer func() { <-p.threads }()
	default:
		return value, fmt.Errorf("cannot %s: %d calls into file systems hang already: %w", key, cap(p.threads), errs.Exhausted)
	}
	err = errs.Guard(key, func() (err error) {
		value, err = ask()
		return err
	})
	return value, err
}

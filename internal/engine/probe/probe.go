// Package probe makes calls to file systems that may hang (a dead network mount, a
// hung FUSE daemon) without blocking the caller.
//
// A call that hangs keeps its thread until the kernel returns; nothing can end it
// earlier. So they are bounded: one thread for each pending probe, however many
// callers it has, and a limit in all.
package probe

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthrun/berth/internal/errs"
)

// Pool runs probes. All methods are safe for concurrent use.
type Pool struct {
	timeout time.Duration
	// threads has an element for each pending probe.
	threads chan struct{}
	pending singleflight.Group
}

// New returns a pool whose probes may take timeout each, limit at a time.
func New(timeout time.Duration, limit int) *Pool {
	return &Pool{timeout: timeout, threads: make(chan struct{}, limit)}
}

// Ask runs ask on its own thread and returns its result. Concurrent callers with the
// same key share one run and its result, which they must not change: a key names the
// verb and all that ask depends on ("look at /mnt"). Kind Unavailable, with the key,
// when ask does not return in time; Exhausted when too many others hang already.
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

// run calls ask, unless too many probes hang. singleflight would end the process for a
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

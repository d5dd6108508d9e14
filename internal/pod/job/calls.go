package job

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Calls keeps calls for one id apart, and lets a caller leave a call that does
// not return: the job goes on, and the id stays busy until the call does return.
// The zero value is not ready; see NewCalls.
type Calls struct {
	grace time.Duration
	mu    sync.Mutex
	busy  map[string]*flight
}

// flight is a call that runs.
type flight struct {
	what  string
	since time.Time
	done  chan struct{}
}

// NewCalls returns Calls that give a call grace to return once its context has
// ended.
func NewCalls(grace time.Duration) *Calls {
	return &Calls{grace: grace, busy: map[string]*flight{}}
}

// Do calls fn when no other call for this id runs, and returns what it returns.
// When ctx ends and fn does not return within the grace, Do returns an error of
// kind Deadline without it. what completes "cannot ..." in every error, so fn's own errors
// say only why; it may end in the id.
func Do[T any](ctx context.Context, c *Calls, id, what string, fn func(context.Context) (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	var none T
	if err := c.acquire(ctx, id, what); err != nil {
		return none, err
	}
	came := make(chan outcome, 1)
	go func() {
		var o outcome
		o.err = errs.Guard(withID(what, id), func() (err error) {
			o.value, err = fn(ctx)
			return err
		})
		c.release(id)
		came <- o
	}()
	select {
	case o := <-came:
		return o.value, wrap(what, o.err)
	case <-ctx.Done():
	}
	patience := time.NewTimer(c.grace)
	defer patience.Stop()
	select {
	case o := <-came:
		return o.value, wrap(what, o.err)
	case <-patience.C:
		return none, fmt.Errorf("cannot %s: %w: it does not return, %s after it was cancelled: %w", what, errs.Deadline, c.grace, context.Cause(ctx))
	}
}

// withID names a call for the log.
func withID(what, id string) string {
	if strings.HasSuffix(what, id) {
		return what
	}
	return what + " " + id
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

func (c *Calls) acquire(ctx context.Context, id, what string) error {
	for {
		c.mu.Lock()
		other := c.busy[id]
		if other == nil {
			defer c.mu.Unlock()
			if ctx.Err() != nil {
				return fmt.Errorf("cannot %s: %w", what, context.Cause(ctx))
			}
			c.busy[id] = &flight{what, time.Now(), make(chan struct{})}
			return nil
		}
		c.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			return fmt.Errorf("cannot %s: %w: an earlier call (%s) does not return since %s", what, errs.Unavailable, other.what, time.Since(other.since).Round(time.Second))
		}
	}
}

func (c *Calls) release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.busy[id].done)
	delete(c.busy, id)
}

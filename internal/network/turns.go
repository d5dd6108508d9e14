package network

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Turns lets one piece of work per sandbox run at a time, for the implementations
// of Network. What they wait for (the kernel, a plugin that must be told the end of
// its work) cannot be given up, so a caller whose time is over leaves its work
// running, and the next caller for that sandbox waits for it. The zero value is
// ready.
type Turns struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

// lastWords is how long Take waits for work whose context has ended.
const lastWords = 1500 * time.Millisecond

// Take runs work when the sandbox's turn is free. When ctx ends first, its error
// is returned and tells that what goes on.
func (t *Turns) Take(ctx context.Context, sandbox, what string, work func() error) error {
	for {
		before, mine := t.enter(sandbox)
		if mine {
			break
		}
		select {
		case <-before:
		case <-ctx.Done():
			return fmt.Errorf("earlier work on the sandbox's network has not ended: %w", ended(ctx))
		}
	}
	done := make(chan error, 1)
	go func() {
		defer t.leave(sandbox)
		done <- errs.Guard(what+" of sandbox "+sandbox, work)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// Work that ends with ctx has more to say than ctx.
	select {
	case err := <-done:
		return err
	case <-time.After(lastWords):
		return fmt.Errorf("%s goes on: %w", what, ended(ctx))
	}
}

// enter takes the turn, or returns what is closed when it becomes free.
func (t *Turns) enter(sandbox string) (busy <-chan struct{}, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, taken := t.busy[sandbox]; taken {
		return before, false
	}
	if t.busy == nil {
		t.busy = map[string]chan struct{}{}
	}
	t.busy[sandbox] = make(chan struct{})
	return nil, true
}

func (t *Turns) leave(sandbox string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[sandbox])
	delete(t.busy, sandbox)
}

// ended is the context's error with its kind.
func ended(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("%w: %w", ctx.Err(), errs.Deadline)
	}
	return ctx.Err()
}

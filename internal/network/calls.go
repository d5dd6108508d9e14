package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
)

// SandboxCalls runs one call per sandbox at a time, for the implementations of Network.
// The work of a call (in the kernel, or of a plugin that must finish) cannot be cancelled:
// a caller whose deadline has passed leaves its call running, and the next caller for that
// sandbox waits for it.
type SandboxCalls struct{ calls *keyed.Calls }

// callGrace is how long a caller whose context has ended waits for its call.
const callGrace = 1500 * time.Millisecond

// NewSandboxCalls returns the calls of one implementation.
func NewSandboxCalls() SandboxCalls { return SandboxCalls{keyed.NewCalls(callGrace)} }

// Do calls fn when no other call for the sandbox runs, and returns its error. When ctx
// ends first, Do returns the error of ctx, of kind Deadline where that is the cause; it
// says whether the call goes on. what says what fn does: "CNI ADD".
func (c SandboxCalls) Do(ctx context.Context, sandbox, what string, fn func() error) error {
	_, err := keyed.Call(ctx, c.calls, sandbox, what+" of sandbox", func(context.Context) (struct{}, error) {
		return struct{}{}, fn()
	})
	var busy *keyed.BusyError
	var left *keyed.LeftError
	switch {
	case errors.As(err, &busy):
		return fmt.Errorf("earlier work on the sandbox's network has not ended: %w", ended(ctx))
	case errors.As(err, &left):
		return fmt.Errorf("%s goes on: %w", what, ended(ctx))
	}
	return err
}

// ended is the context's error with its kind.
func ended(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("%w: %w", ctx.Err(), errs.Deadline)
	}
	return ctx.Err()
}

package pod

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/keyed"
)

// callFor runs fn when no other call for the id runs, and returns what fn returns; errors
// say that berth cannot do what, such as "start container", so fn's own errors say only
// why. what may end in the id. A call that does not return
// after its context has ended is left, with an error of kind Deadline: the job goes on,
// and the id stays busy until the call returns. See keyed.Call.
func callFor[T any](ctx context.Context, calls *keyed.Calls, id, what string, fn func(context.Context) (T, error)) (T, error) {
	value, err := keyed.Call(ctx, calls, id, strings.TrimSuffix(what, " "+id), func(ctx context.Context) (value T, err error) {
		if ctx.Err() != nil { // it ended while an earlier call ran
			return value, context.Cause(ctx)
		}
		return fn(ctx)
	})
	if err != nil {
		return value, fmt.Errorf("cannot %s: %w", what, err)
	}
	return value, nil
}

// call is callFor for what returns nothing.
func (s *Service) call(ctx context.Context, id, what string, fn func(context.Context, string) error) error {
	_, err := callFor(ctx, s.calls, id, what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, fn(ctx, id)
	})
	return err
}

// Package call calls parts that may hang (an engine, a network, an image store), one call per
// object at a time, so that a call that does not return blocks only its own object.
package call

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/keyed"
)

// Get runs fn when no other call for the id runs, and returns what fn returns. Its errors
// say that berth cannot do what, such as "start container", so fn's own errors say only
// why. what may end in the id.
//
// Get leaves a call that does not return after its context has ended, with an error of kind
// Deadline: the caller continues, and the id stays busy until the call returns. See keyed.Call.
func Get[T any](ctx context.Context, calls *keyed.Calls, id, what string, fn func(context.Context) (T, error)) (T, error) {
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

// Run is Get for a function that returns only an error.
func Run(ctx context.Context, calls *keyed.Calls, id, what string, fn func(context.Context) error) error {
	_, err := Get(ctx, calls, id, what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, fn(ctx)
	})
	return err
}

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

const (
	// taskFor bounds a task of a kind that says nothing of its own.
	taskFor = 5 * time.Minute
	// probeFor bounds one try of a probe: a program that checks a configuration, a request
	// to a service.
	probeFor = 2 * time.Minute
)

// taskDeadline is how long a task may take to be fetched for, looked at or applied, each with
// all its tries.
func (rc *Reconciler) taskDeadline(t provision.Task) time.Duration {
	limit := taskFor
	if timed, ok := t.(provision.Timed); ok {
		limit = timed.Deadline()
	}
	if rc.TaskFor != nil {
		return rc.TaskFor(t, limit)
	}
	return limit
}

// backFor is how long an object of a kind may take to go back. Each has its own time: one that hangs
// must not take that of the others.
func backFor(kind provision.Kind) time.Duration {
	if timed, ok := kind.(provision.TimedKind); ok {
		return timed.Deadline()
	}
	return taskFor
}

// within runs f, whose context ends after limit. What f waits for ends with its context: a
// program is killed. The error says so then, and wraps errs.Deadline.
func within(ctx context.Context, limit time.Duration, f func(ctx context.Context) error) error {
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(timed)
	if err == nil || ctx.Err() != nil || !errors.Is(timed.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("it was not done after %s and was ended: %w: %w", limit, errs.Deadline, err)
}

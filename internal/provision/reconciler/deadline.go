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
	// taskFor bounds a task whose kind sets no deadline of its own.
	taskFor = 5 * time.Minute
	// probeFor bounds one try of a probe, such as a program that checks a configuration or a
	// request to a service.
	probeFor = 2 * time.Minute
)

// taskDeadline is how long a task may take to be prepared, checked or applied, each with all its
// retries.
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

// backFor is how long an object of a kind may take to be restored. Each has its own deadline: one
// that hangs must not use up the time of the others.
func backFor(kind provision.Kind) time.Duration {
	if timed, ok := kind.(provision.TimedKind); ok {
		return timed.Deadline()
	}
	return taskFor
}

// within runs f, whose context ends after limit. A program that f runs is killed then. The error
// says so, and wraps errs.Deadline.
func within(ctx context.Context, limit time.Duration, f func(ctx context.Context) error) error {
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(timed)
	if err == nil || ctx.Err() != nil || !errors.Is(timed.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("it was not done after %s and was ended: %w: %w", limit, errs.Deadline, err)
}

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// The time between two tries of a probe grows from the first to the last of these: a failing test
// sandbox is expensive.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 8 * time.Second
)

// before runs a unit's cross-checks.
func (r *run) before(ctx context.Context, unit string) error {
	for _, p := range r.graph.gates[unit].Before {
		if err := r.probe(r.warned(ctx, p), p); err != nil {
			return fmt.Errorf("%s is not touched, because %s: %w", unit, p.Name(), err)
		}
	}
	return nil
}

// after waits until the unit is healthy.
func (r *run) after(ctx context.Context, unit string) error {
	return r.afterFor(ctx, unit, r.graph.gates[unit], r.GateFor)
}

func (r *run) afterFor(ctx context.Context, unit string, gate provision.Gate, patience time.Duration) error {
	if !r.Host.Live() {
		return nil
	}
	deadline := r.Now().Add(patience)
	for _, p := range gate.After {
		err := r.step(ctx, p.Name(), func(ctx context.Context) error { return r.healthy(r.warned(ctx, p), p, deadline) })
		if err != nil {
			return fmt.Errorf("%s is not healthy: %s: %w", unit, p.Name(), err)
		}
	}
	return nil
}

// warned collects a probe's warnings, each once.
func (r *run) warned(ctx context.Context, p provision.Probe) context.Context {
	return provision.WithWarnings(ctx, func(warning string) {
		warning = p.Name() + ": " + warning
		r.mu.Lock()
		defer r.mu.Unlock()
		if !slices.Contains(r.out.Warnings, warning) {
			r.out.Warnings = append(r.out.Warnings, warning)
		}
	})
}

// probe runs a probe once.
func (r *run) probe(ctx context.Context, p provision.Probe) error {
	return within(ctx, probeFor, func(ctx context.Context) error { return p.Run(ctx, r.Host) })
}

func (r *run) healthy(ctx context.Context, p provision.Probe, deadline time.Time) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := r.probe(ctx, p)
		// An unsupported call will not succeed later.
		if err == nil || errors.Is(err, errs.Unsupported) || r.Now().Add(pause).After(deadline) {
			return err
		}
		if e := r.Sleep(ctx, pause); e != nil {
			return fmt.Errorf("%w: %w", err, errs.Deadline)
		}
	}
}

func opener(holder provision.Holder, host provision.Host, name string) provision.Content {
	return func() (io.ReadCloser, error) { return holder.Content(host, name) }
}

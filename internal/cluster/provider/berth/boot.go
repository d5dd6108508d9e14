package berth

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthrun/berth/internal/errs"
)

// BootUnit is the unit of systemd that calls Up and Down.
const BootUnit = "berth-cluster.service"

// Up starts the nodes of all clusters that ran when the host went down: those that nobody stopped.
// It tries all.
func (e *Provider) Up(ctx context.Context) error {
	return e.eachRecord(ctx, func(ctx context.Context, r *record) error {
		if r.Stopped || r.Run == 0 {
			return nil
		}
		return e.Start(ctx, r.name())
	})
}

// Down stops all nodes of all clusters because the host goes down. Up starts them again.
func (e *Provider) Down(ctx context.Context) error {
	return e.eachRecord(ctx, func(ctx context.Context, r *record) error {
		if err := e.withNode(ctx, r.name(), func(r *record) error { return e.halt(ctx, r) }); err != nil {
			return fmt.Errorf("cannot stop %s: %w", r.name(), err)
		}
		return nil
	})
}

// eachRecord calls a function for all nodes at once, also if it fails for some. A node that is
// deleted meanwhile is not an error.
func (e *Provider) eachRecord(ctx context.Context, do func(context.Context, *record) error) error {
	all, err := e.records("")
	return errors.Join(err, each(ctx, all, func(ctx context.Context, r *record) error {
		return errs.IgnoreNotFound(do(ctx, r))
	}))
}

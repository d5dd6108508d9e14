package berth

import (
	"context"
	"fmt"
)

// BootUnit is the unit of systemd that calls Up and Down.
const BootUnit = "berth-cluster.service"

// Up starts what ran when the host went down, of all clusters: what nobody has stopped. All
// are tried.
func (e *Engine) Up(ctx context.Context) error {
	all, err := e.records("")
	if err != nil {
		return err
	}
	var names []string
	for _, r := range all {
		if !r.Stopped {
			names = append(names, r.name())
		}
	}
	return e.Start(ctx, names...)
}

// Down stops all nodes of all clusters, since the host goes down. Up starts them again.
func (e *Engine) Down(ctx context.Context) error {
	all, err := e.records("")
	if err != nil {
		return err
	}
	var names []string
	for _, r := range all {
		names = append(names, r.name())
	}
	return each(ctx, names, func(ctx context.Context, name string) error {
		if err := e.withNode(ctx, name, func(r *record) error { return e.halt(ctx, r) }); err != nil {
			return fmt.Errorf("cannot stop %s: %w", name, err)
		}
		return nil
	})
}

package reconciler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// undoFor bounds the time of an automatic rollback.
const undoFor = 10 * time.Minute

// Left is an object that could not be restored.
type Left struct {
	Object provision.Object `json:"object"`
	Reason string           `json:"reason"`
}

// undo restores what the run's entry touched, and releases what became ours in it. Repairs of an
// apply stay.
func (r *run) undo(ctx context.Context) error {
	return r.step(ctx, "undo", func(ctx context.Context) error {
		touched, fresh, _ := r.journal.Since(r.out.Number - 1)
		// An object that became ours without a change, such as a new runtime's data, was created by
		// what the run started.
		untouched := slices.DeleteFunc(originals(fresh), func(p journal.Prior) bool {
			return slices.ContainsFunc(touched, func(t journal.Prior) bool { return t.Object == p.Object })
		})
		touched = append(untouched, touched...)
		repaired, err := r.repairs(ctx, touched, fresh)
		if err != nil {
			return err
		}
		left, err := r.restore(ctx, r.toUndo(touched, repaired), r.tried, handling{restart: func(ctx context.Context, unit string) error {
			if task := r.restored(ctx).restarter(unit); task != nil {
				return within(ctx, taskFor, func(ctx context.Context) error { return task.Restart(ctx, r.Host) })
			}
			return within(ctx, taskFor, func(ctx context.Context) error { return r.Host.Units().Restart(ctx, unit) })
		}})
		r.out.Left = append(r.out.Left, left...)
		if err != nil {
			return err
		}
		for _, o := range repaired {
			r.out.Repaired = append(r.out.Repaired, o.Object)
		}
		// Units that were not restarted never read what is undone now.
		return errors.Join(r.journal.Restarted(r.needlessRestarts(repaired)), r.journal.Leave(without(objectsOf(originals(fresh)), left)))
	})
}

// restored is the target of the last successful entry before the run, whose files are in place
// again: the run's own gates would check for the run's target. It is empty if there is no such
// entry, or if its target is unknown.
func (r *run) restored(ctx context.Context) *graph {
	r.again.Do(func() {
		r.earlier = &graph{}
		entry := r.lastGood()
		if entry == 0 || r.Wanted == nil {
			return
		}
		target, err := r.Wanted(ctx, entry)
		var g *graph
		if err == nil {
			g, err = newGraph(target)
		}
		if err != nil {
			r.Report.Note("undo", fmt.Sprintf("cannot run health checks after the undo: %v", err))
			return
		}
		r.earlier = g
	})
	return r.earlier
}

// lastGood is the last entry before the run's that ended well; 0 for none.
func (r *run) lastGood() int {
	for _, e := range slices.Backward(r.journal.History()) {
		if e.Number < r.out.Number && e.Result == journal.OK {
			return e.Number
		}
	}
	return 0
}

// healthAfterUndo lists the running units that are not healthy after the undo. They may have been
// unhealthy before the run.
func (r *run) healthAfterUndo(ctx context.Context) error {
	var sick []error
	gates := r.restored(ctx).gates
	for _, unit := range slices.Sorted(maps.Keys(gates)) {
		active, err := r.active(ctx, unit)
		if err == nil && active {
			err = r.afterFor(ctx, unit, gates[unit], r.GateFor/4)
		}
		if err != nil {
			sick = append(sick, fmt.Errorf("as before, but: %w", err))
		}
	}
	return errors.Join(sick...)
}

// handling is how a restore treats units.
type handling struct {
	restart func(ctx context.Context, unit string) error
	// before is called when files are in place and no unit is started yet, after when all run. With
	// a before, a failure stops the restore; without, all objects are tried.
	before, after func(ctx context.Context) error
}

// restore restores objects, given in the order in which they were touched, and then restarts those
// of units that were not stopped meanwhile. It leaves and lists what a machine cannot restore.
func (rc *Reconciler) restore(ctx context.Context, priors []journal.Prior, units []string, h handling) ([]Left, error) {
	u := undoing{Reconciler: rc}
	for _, p := range slices.Backward(priors) {
		if releaser, ok := rc.Kinds[p.Object.Kind].(provision.Releaser); ok {
			u.note(p, within(ctx, backFor(releaser), func(ctx context.Context) error {
				return releaser.Release(ctx, rc.Host, p.Object.Name, p.State)
			}))
		}
	}
	u.restoreThings(ctx, placesLast(priors))
	var running []string
	for _, unit := range units {
		// A unit that did not start with the undone change ran before.
		stopped, err := rc.stopped(ctx, unit)
		u.fail(err)
		if err == nil && !stopped {
			running = append(running, unit)
		}
	}
	if h.before != nil && len(u.failed) == 0 {
		u.fail(h.before(ctx))
	}
	if h.before != nil && len(u.failed) > 0 {
		return u.left, errors.Join(u.failed...)
	}
	for _, p := range priors {
		if _, ok := rc.Kinds[p.Object.Kind].(provision.Releaser); ok {
			u.note(p, rc.restoreOne(ctx, p))
		}
	}
	for _, unit := range running {
		if err := h.restart(ctx, unit); err != nil {
			u.fail(err)
			units = slices.DeleteFunc(slices.Clone(units), func(other string) bool { return other == unit })
		}
	}
	if h.after != nil && len(u.failed) == 0 {
		u.fail(h.after(ctx))
	}
	due := rc.journal.Pending()
	u.fail(rc.journal.Restarted(slices.DeleteFunc(slices.Clone(units), func(unit string) bool { return !slices.Contains(due, unit) })))
	return u.left, errors.Join(u.failed...)
}

// restoreThings restores all objects except those that are released and started. An object that
// blocks another, such as a package that others need, is retried as long as one of them succeeds:
// not every package manager reports the order of installs.
func (u *undoing) restoreThings(ctx context.Context, priors []journal.Prior) {
	priors = slices.DeleteFunc(priors, func(p journal.Prior) bool {
		_, released := u.Kinds[p.Object.Kind].(provision.Releaser)
		return released
	})
	joined := false
	for {
		var restartRest []journal.Prior
		var reasons []error
		for _, p := range priors {
			if err := u.restoreOne(ctx, p); errors.Is(err, errs.State) {
				restartRest, reasons = append(restartRest, p), append(reasons, err)
			} else {
				u.note(p, err)
			}
		}
		stuck := len(restartRest) == len(priors)
		if stuck && !joined {
			joined, stuck = true, !u.restoreJointly(ctx, restartRest, reasons)
		}
		if len(restartRest) == 0 || stuck {
			for i, p := range restartRest {
				u.note(p, reasons[i])
			}
			return
		}
		priors = restartRest
	}
}

// restoreJointly restores together what cannot be restored one by one. It reports whether that helped.
func (u *undoing) restoreJointly(ctx context.Context, priors []journal.Prior, reasons []error) bool {
	helped := false
	for kind, joint := range u.Kinds {
		joint, ok := joint.(provision.Joint)
		states := map[string]provision.State{}
		for i, p := range priors {
			if ok && p.Object.Kind == kind && p.State.Exists && !errors.Is(reasons[i], errs.NotFound) {
				states[p.Object.Name] = p.State
			}
		}
		if len(states) > 1 {
			err := within(ctx, backFor(joint), func(ctx context.Context) error { return joint.RestoreJointly(ctx, u.Host, states) })
			helped = helped || err == nil
		}
	}
	return helped
}

// placesLast orders priors for the restore: the last touched first, but directories and data after
// all else, the innermost first, since a removed package or program may have files in them.
func placesLast(priors []journal.Prior) []journal.Prior {
	var things, places []journal.Prior
	for _, p := range slices.Backward(priors) {
		if p.Object.Kind == provision.KindDir || p.Object.Kind == provision.KindData {
			places = append(places, p)
		} else {
			things = append(things, p)
		}
	}
	slices.SortStableFunc(places, func(a, b journal.Prior) int {
		return cmp.Or(strings.Compare(b.Object.Name, a.Object.Name), strings.Compare(a.Object.Kind, b.Object.Kind))
	})
	return append(things, places...)
}

// undoing collects what is not restored.
type undoing struct {
	*Reconciler
	left   []Left
	failed []error
}

func (u *undoing) fail(err error) {
	if err != nil {
		u.failed = append(u.failed, err)
	}
}

func (u *undoing) note(p journal.Prior, err error) {
	switch {
	case errors.Is(err, errs.State):
		u.left = append(u.left, Left{Object: p.Object, Reason: err.Error()})
	case err != nil:
		u.failed = append(u.failed, fmt.Errorf("cannot restore %s: %w", p.Object, err))
	}
}

func (rc *Reconciler) restoreOne(ctx context.Context, p journal.Prior) error {
	kind, err := rc.kind(p.Object)
	if err != nil {
		return err
	}
	// What a killed write left lies in a directory that may have to go; not every restore writes there, and replaces it.
	if placed, ok := kind.(provision.Placed); ok {
		if err := rc.Host.Files().Tidy(placed.Path(p.Object.Name)); err != nil {
			return err
		}
	}
	content := func() (io.ReadCloser, error) {
		r, err := rc.journal.Content(p.State.Digest)
		if errors.Is(err, errs.NotFound) {
			return nil, fmt.Errorf("the content that %s had is no longer kept; the next apply creates it again: %w", p.Object, errs.State)
		}
		return r, err
	}
	return within(ctx, backFor(kind), func(ctx context.Context) error {
		return kind.Restore(ctx, rc.Host, p.Object.Name, p.State, content)
	})
}

// without lists objects except those that were left.
func without(objects []provision.Object, left []Left) []provision.Object {
	return slices.DeleteFunc(slices.Clone(objects), func(o provision.Object) bool {
		return slices.ContainsFunc(left, func(l Left) bool { return l.Object == o })
	})
}

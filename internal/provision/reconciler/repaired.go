package reconciler

import (
	"context"
	"slices"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// failed notes a task that failed, and the unit that it runs or that was not healthy.
func (r *run) failed(task, unit string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failedTasks = append(r.failedTasks, task)
	if unit != "" {
		r.failedUnits = append(r.failedUnits, unit)
	}
}

// repairs lists those of touched that stay when an apply is undone: somebody had changed them since
// the last successful entry, and the run made them as that entry left them. Undoing returns to the
// state of that entry, not to the drift from it.
//
// A task's repairs stay together or not at all. Those of a task that failed go back, and so does
// what a unit reads that failed: it may have run with what was there before.
func (r *run) repairs(ctx context.Context, touched []journal.Prior, fresh []journal.Owned) ([]journal.Owned, error) {
	good := r.lastGood()
	if good == 0 || !r.keepRepairs {
		return nil, nil
	}
	owned := map[provision.Object]journal.Owned{}
	for _, o := range r.journal.Owned() {
		owned[o.Object] = o
	}
	for _, o := range fresh { // no entry made these before this run
		delete(owned, o.Object)
	}
	now, err := r.states(ctx, objectsOf(touched))
	if err != nil {
		return nil, err
	}
	known := r.journal.At(good, touched)
	var repaired []journal.Owned
	undone := map[string]bool{} // tasks
	stale := slices.Clone(r.failedUnits)
	for _, task := range r.failedTasks {
		undone[task] = true
	}
	for i, before := range touched {
		o, ours := owned[before.Object]
		switch {
		case same(before.Object, before.State, now[i].State):
		case ours && same(before.Object, known[i].State, now[i].State):
			repaired = append(repaired, o)
		case before.Object.Kind == provision.KindDir && !before.State.Exists:
			// A directory that was created for an object stays with it, or is removed with it.
		case ours:
			undone[o.Task] = true
			stale = append(stale, o.Restarts...)
		}
	}
	for again := true; again; {
		again = false
		repaired = slices.DeleteFunc(repaired, func(o journal.Owned) bool {
			if !undone[o.Task] && !r.reads(o, r.failedUnits) && !r.runs(o.Task, stale) {
				return false
			}
			again, undone[o.Task] = true, true
			stale = append(stale, o.Restarts...)
			return true
		})
	}
	return repaired, nil
}

// reads reports whether one of units is restarted for an object.
func (r *run) reads(o journal.Owned, units []string) bool {
	return slices.ContainsFunc(units, func(unit string) bool { return slices.Contains(o.Restarts, unit) })
}

// runs reports whether a task runs one of units.
func (r *run) runs(task string, units []string) bool {
	return slices.ContainsFunc(units, func(unit string) bool {
		restarter := r.graph.restarter(unit)
		return restarter != nil && restarter.ID() == task
	})
}

// same compares two states of an object.
func same(o provision.Object, a, b provision.State) bool { return diffStates(o, a, b).Action == "" }

// toUndo takes repairs from touched, and the directories that were made for them.
func (r *run) toUndo(touched []journal.Prior, repaired []journal.Owned) []journal.Prior {
	stay := map[provision.Object]bool{}
	for _, o := range repaired {
		stay[o.Object] = true
		for _, dir := range r.parents(o.Object) {
			stay[provision.Object{Kind: provision.KindDir, Name: dir}] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(touched), func(p journal.Prior) bool { return stay[p.Object] })
}

// needlessRestarts lists units whose restart is due for what is undone alone.
func (r *run) needlessRestarts(repaired []journal.Owned) []string {
	return slices.DeleteFunc(r.journal.Pending(), func(unit string) bool {
		return slices.Contains(r.pending, unit) ||
			slices.ContainsFunc(repaired, func(o journal.Owned) bool { return r.reads(o, []string{unit}) || r.runs(o.Task, []string{unit}) })
	})
}

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// run is one apply under way.
type run struct {
	*Reconciler
	graph *graph
	// pending lists restarts that were due before the run.
	pending []string

	mu  sync.Mutex
	out *Outcome
	// tried lists units whose restart was begun.
	tried []string
	// keepRepairs makes an undo leave what the run has repaired.
	keepRepairs bool
	// failedTasks and failedUnits are what made the run fail.
	failedTasks, failedUnits []string

	// earlier is the target of the last successful entry, once it is loaded.
	again   sync.Once
	earlier *graph
}

// all applies every node after those that it needs, several at a time. After the first failure it
// begins no further node, and waits for those that run.
func (r *run) all(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make([]chan struct{}, len(r.graph.nodes))
	for i := range done {
		done[i] = make(chan struct{})
	}
	slots := make(chan struct{}, workers)
	var faults faults
	var wg sync.WaitGroup
	for i, n := range r.graph.nodes {
		wg.Go(func() {
			defer close(done[i])
			for _, need := range n.needs {
				<-done[need]
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			if faults.any() || ctx.Err() != nil {
				return
			}
			if err := r.node(ctx, n); err != nil {
				unit, _ := r.due(n)
				r.failed(n.task.ID(), unit)
				faults.add(&TaskError{Verb: "apply", Task: n.task.ID(), Why: n.meta.Why, Err: err})
			}
		})
	}
	wg.Wait()
	if err := faults.join(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("apply was interrupted: %w", err)
	}
	return r.restartRest(ctx)
}

// node applies one task: record, gate, change, check again, restart, gate.
func (r *run) node(ctx context.Context, n node) error {
	change, err := r.check(ctx, n)
	if err != nil {
		return err
	}
	unit, due := r.due(n)
	if change.Empty() && !due {
		return r.own(ctx, n)
	}
	if unit == "" {
		return r.change(ctx, n, change)
	}
	if err := r.before(ctx, unit); err != nil {
		return err
	}
	wasActive, err := r.active(ctx, unit)
	if err != nil {
		return err
	}
	if !change.Empty() {
		if err := r.change(ctx, n, change); err != nil {
			return err
		}
	}
	if wasActive && (due || changesFiles(change)) {
		if err := r.restart(ctx, unit, n.task.(provision.Restarter)); err != nil {
			return err
		}
	}
	if err := r.after(ctx, unit); err != nil {
		return err
	}
	return r.journal.Restarted(intersect(r.journal.Pending(), unit))
}

func intersect(list []string, name string) []string {
	if slices.Contains(list, name) {
		return []string{name}
	}
	return nil
}

// due returns the unit that a node runs, and whether its restart is pending.
func (r *run) due(n node) (unit string, due bool) {
	restarter, ok := n.task.(provision.Restarter)
	if !ok {
		return "", false
	}
	return restarter.Unit(), slices.Contains(r.journal.Pending(), restarter.Unit())
}

// change records what is there, applies, and checks that nothing is left to do.
func (r *run) change(ctx context.Context, n node, change provision.Change) error {
	if err := r.record(ctx, n); err != nil {
		return err
	}
	restarts := n.meta.Restarts
	if restarter, ok := n.task.(provision.Restarter); ok && changesFiles(change) {
		restarts = append(slices.Clone(restarts), restarter.Unit())
	}
	if err := r.journal.WantRestart(restarts); err != nil {
		return err
	}
	err := r.step(ctx, n.task.ID(), func(ctx context.Context) error {
		return within(ctx, r.taskDeadline(n.task), func(ctx context.Context) error {
			return r.retry(ctx, n.task.ID(), func(ctx context.Context) error { return n.task.Apply(ctx, r.Host) })
		})
	})
	if err != nil {
		return err
	}
	left, err := r.check(ctx, n)
	if err != nil {
		return err
	}
	if !left.Empty() {
		d := left.Diffs[0]
		return fmt.Errorf("%s %s right after it was applied: somebody else changes it, too: %w", d.Object, d.Reason, errs.State)
	}
	r.mu.Lock()
	r.out.Changed = append(r.out.Changed, n.task.ID())
	r.mu.Unlock()
	return r.recordAfter(ctx, n)
}

// keepLimit is the largest size of a file whose content is kept when berth writes it. Larger files
// are of assets and packages, and are kept when they are replaced.
const keepLimit = 1 << 20

// recordAfter records the present states of a node's objects.
func (r *run) recordAfter(ctx context.Context, n node) error {
	objects, err := n.task.Objects(ctx, r.Host)
	if err != nil {
		return err
	}
	return r.done(ctx, n, r.withAlong(n, objects))
}

// withAlong puts the packages that came along with a node's behind its objects: when they are installed, the task does not list
// them any more.
func (r *run) withAlong(n node, objects []provision.Object) []provision.Object {
	list := slices.Clone(objects)
	for _, o := range r.journal.Owned() {
		if o.Task == n.task.ID() && cameAlong(o) && !slices.Contains(list, o.Object) {
			list = append(list, o.Object)
		}
	}
	return list
}

// done records the present states of objects of a node, and keeps their contents.
func (r *run) done(ctx context.Context, n node, objects []provision.Object) error {
	after, err := r.states(ctx, objects)
	if err != nil {
		return err
	}
	for _, p := range after {
		placed, ok := r.Kinds[p.Object.Kind].(provision.Placed)
		if !ok || p.State.Digest == "" {
			continue
		}
		info, err := r.Host.Files().Stat(placed.Path(p.Object.Name))
		if err != nil {
			return err
		}
		if info.Size > keepLimit {
			continue
		}
		if err := r.keep(p); err != nil {
			return err
		}
	}
	return r.journal.Done(n.task.ID(), after)
}

// recordFirst records the states of all objects that are or become ours, before anything changes.
// Later would be too late: a package brings running units, configurations and data that other tasks
// own, and that did not exist before.
func (r *run) recordFirst(ctx context.Context, plan *Plan) error {
	for _, n := range r.graph.nodes {
		var err error
		if slices.ContainsFunc(plan.Steps, func(s Step) bool { return s.Task == n.task.ID() }) {
			err = r.record(ctx, n)
		} else {
			err = r.own(ctx, n)
		}
		if err != nil {
			return fmt.Errorf("cannot record %s: %w", n.task.ID(), err)
		}
	}
	return nil
}

// record records the states of a node's objects, and of the directories that will be created for
// it, and keeps their contents. Earlier records stay.
func (r *run) record(ctx context.Context, n node) error {
	objects, err := n.task.Objects(ctx, r.Host)
	if err != nil {
		return err
	}
	priors, err := r.states(ctx, r.withParents(objects))
	if err != nil {
		return err
	}
	for _, p := range priors {
		if err := r.keep(p); err != nil {
			return err
		}
	}
	return r.journal.Touch(n.task.ID(), n.meta.Restarts, priors)
}

// withParents puts directories that are missing before the objects in them.
func (r *run) withParents(objects []provision.Object) []provision.Object {
	var list []provision.Object
	for _, o := range objects {
		for _, dir := range slices.Backward(r.parents(o)) {
			d := provision.Object{Kind: provision.KindDir, Name: dir}
			if _, err := r.Host.Files().Stat(dir); errors.Is(err, errs.NotFound) && !slices.Contains(list, d) {
				list = append(list, d)
			}
		}
		list = append(list, o)
	}
	return list
}

// states reads objects.
func (rc *Reconciler) states(ctx context.Context, objects []provision.Object) ([]journal.Prior, error) {
	list := make([]journal.Prior, len(objects))
	for i, o := range objects {
		kind, err := rc.kind(o)
		if err != nil {
			return nil, err
		}
		state, err := kind.Read(ctx, rc.Host, o.Name)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", o, err)
		}
		list[i] = journal.Prior{Object: o, State: state}
	}
	return list, nil
}

// keep keeps an object's content in the journal.
func (rc *Reconciler) keep(p journal.Prior) error {
	holder, ok := rc.Kinds[p.Object.Kind].(provision.Holder)
	if !ok || p.State.Digest == "" {
		return nil
	}
	return rc.journal.Keep(p.State.Digest, opener(holder, rc.Host, p.Object.Name))
}

// own makes the objects of a node ours that is already as wanted. Their state may be restored
// later, so their contents are kept, too. What a killed write of them left behind goes: no write follows that replaces it. If a
// killed process made them so and did not come to record that, this is recorded now.
func (r *run) own(ctx context.Context, n node) error {
	objects, err := n.task.Objects(ctx, r.Host)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if placed, ok := r.Kinds[o.Kind].(provision.Placed); ok {
			if err := r.Host.Files().Tidy(placed.Path(o.Name)); err != nil {
				return err
			}
		}
	}
	if made := r.journal.Unrecorded(r.withAlong(n, objects)); len(made) > 0 {
		if err := r.done(ctx, n, made); err != nil {
			return err
		}
	}
	objects = slices.DeleteFunc(objects, func(o provision.Object) bool {
		task, ok := r.journal.Owns(o)
		return ok && task == n.task.ID()
	})
	priors, err := r.states(ctx, objects)
	if err != nil {
		return err
	}
	for _, p := range priors {
		if _, ok := r.journal.Owns(p.Object); ok {
			continue
		}
		if err := r.keep(p); err != nil {
			return err
		}
	}
	return r.journal.Own(n.task.ID(), n.meta.Restarts, priors)
}

// restartRest restarts the units that are still due when all tasks are done: those that no task
// runs, or whose task had to come before.
func (r *run) restartRest(ctx context.Context) error {
	for _, unit := range r.journal.Pending() {
		active, err := r.active(ctx, unit)
		if err != nil {
			return err
		}
		if active {
			if err := r.guarded(ctx, unit, r.graph.restarter(unit)); err != nil {
				r.failed("", unit)
				return fmt.Errorf("cannot restart %s: %w", unit, err)
			}
		}
		if err := r.journal.Restarted([]string{unit}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) guarded(ctx context.Context, unit string, task provision.Restarter) error {
	if err := r.before(ctx, unit); err != nil {
		return err
	}
	if err := r.restart(ctx, unit, task); err != nil {
		return err
	}
	return r.after(ctx, unit)
}

// restart restarts a unit, through its task where it has one.
func (r *run) restart(ctx context.Context, unit string, task provision.Restarter) error {
	r.mu.Lock()
	r.tried = append(r.tried, unit)
	r.mu.Unlock()
	err := r.step(ctx, "restart "+unit, func(ctx context.Context) error {
		if task != nil {
			return within(ctx, r.taskDeadline(task), func(ctx context.Context) error { return task.Restart(ctx, r.Host) })
		}
		return within(ctx, taskFor, func(ctx context.Context) error { return r.Host.Units().Restart(ctx, unit) })
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.out.Restarted = append(r.out.Restarted, unit)
	r.mu.Unlock()
	return r.journal.Restarted([]string{unit})
}

// faults collects errors of several goroutines.
type faults struct {
	mu   sync.Mutex
	list []error
}

func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, err)
}

func (f *faults) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.list) > 0
}

func (f *faults) join() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.list...)
}

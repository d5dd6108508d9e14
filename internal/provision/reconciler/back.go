package reconciler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// Back is the plan of a prune, rollback or reset: what it would restore.
type Back struct {
	// Priors are objects with the states to restore, in the order in which they were touched.
	Priors []journal.Prior `json:"-"`
	// Diffs are the differences from those states.
	Diffs []provision.Diff `json:"diffs"`
	// Restarts lists units that read what changes.
	Restarts []Restart `json:"restarts,omitempty"`
	// Stops says what happens to pods whose runtime stops. The reconciler knows no pods: the caller
	// sets it before the user is asked for consent.
	Stops []string `json:"stops,omitempty"`

	// graph is the state that the machine goes back to, with its gates.
	graph *graph
	// kept are those of Priors that Keep has added.
	kept []journal.Prior
}

// Empty reports whether there is nothing to restore.
func (b *Back) Empty() bool { return len(b.Priors) == 0 }

// Disruptions lists what would happen to running pods.
func (b *Back) Disruptions() []string {
	return append(slices.Clone(b.Stops), restartDisruptions(b.Restarts)...)
}

// Keep has an object that Evict changes, such as the running kubelet, be as it is now when all is restored, also if the process
// is killed and the command runs again. It is restored last. One that does not exist needs nothing.
func (rc *Reconciler) Keep(ctx context.Context, b *Back, o provision.Object) error {
	i := slices.IndexFunc(b.Priors, func(p journal.Prior) bool { return p.Object == o })
	if i >= 0 && b.Priors[i].State.Exists { // as it was before a kill
		b.kept = append(b.kept, b.Priors[i])
		return nil
	}
	now, err := rc.states(ctx, []provision.Object{o})
	if err != nil || !now[0].State.Exists {
		return err
	}
	if i >= 0 {
		b.Priors = slices.Delete(b.Priors, i, i+1)
	}
	b.Priors, b.kept = append(b.Priors, now...), append(b.kept, now...)
	return nil
}

// resume restores what was kept after a failure, also one that the user caused.
func (rc *Reconciler) resume(ctx context.Context, b *Back) error {
	var failed []error
	for _, p := range b.kept {
		failed = append(failed, rc.restoreOne(context.WithoutCancel(ctx), p))
	}
	return errors.Join(failed...)
}

// Consent returns an error that says what would happen to running pods, if the user has not
// consented.
func (b *Back) Consent(given bool) error { return consent(b.Disruptions(), given) }

// BackOptions are what the user decides about a prune, rollback or reset.
type BackOptions struct {
	// AllowDisruption consents to the plan's disruptions of running pods.
	AllowDisruption bool
	// KeepFailed leaves the changes of a failed operation in place, for inspection.
	KeepFailed bool
	// Evict stops the pods that Stops names. It is called after all is recorded, and before
	// anything is restored; nil when there are none.
	Evict func(ctx context.Context) error
}

// PlanPrune lists what is ours and not wanted by the target.
func (rc *Reconciler) PlanPrune(ctx context.Context, target provision.Target) (*Back, error) {
	g, err := newGraph(target)
	if err != nil {
		return nil, err
	}
	plan, _, err := rc.plan(ctx, g)
	if err != nil {
		return nil, err
	}
	return rc.back(ctx, g, originals(plan.Unwanted), plan.Unwanted)
}

// PlanReset lists all that is ours.
func (rc *Reconciler) PlanReset(ctx context.Context) (*Back, error) {
	owned := rc.journal.Owned()
	return rc.back(ctx, &graph{}, originals(owned), owned)
}

// PlanRollback lists what was touched after entry n. target is what that entry wanted: its gates
// guard the restored units, and its tasks restart them. An empty target guards nothing.
func (rc *Reconciler) PlanRollback(ctx context.Context, n int, target provision.Target) (*Back, error) {
	g, err := newGraph(target)
	if err != nil {
		return nil, err
	}
	history := rc.journal.History()
	i := slices.IndexFunc(history, func(entry journal.Entry) bool { return entry.Number == n })
	switch {
	case i < 0:
		return nil, fmt.Errorf("entry %d is not in the history: %w", n, errs.NotFound)
	case history[i].Result != journal.OK:
		return nil, fmt.Errorf("entry %d failed, so it is not a state to return to: %w", n, errs.State)
	}
	priors, _, gone := rc.journal.Since(n)
	return rc.back(ctx, g, rc.journal.At(n, priors), slices.Concat(rc.journal.Owned(), gone))
}

func originals(owned []journal.Owned) []journal.Prior {
	list := make([]journal.Prior, len(owned))
	for i, o := range owned {
		list[i] = o.Prior
	}
	return list
}

// back compares priors with the machine.
func (rc *Reconciler) back(ctx context.Context, g *graph, priors []journal.Prior, owned []journal.Owned) (*Back, error) {
	b := &Back{Priors: slices.Clone(priors), graph: g}
	now, err := rc.states(ctx, b.objects())
	if err != nil {
		return nil, err
	}
	rc.keepUpdates(b.Priors, now, owned)
	changed := map[provision.Object]bool{}
	for i, p := range b.Priors {
		d := diffStates(p.Object, now[i].State, p.State)
		if d, err = rc.seal(d, now[i].State, p.State); err != nil {
			return nil, err
		}
		if d.Action != "" {
			b.Diffs = append(b.Diffs, d)
			changed[p.Object] = true
		}
	}
	var because reasons
	for _, o := range owned {
		// A unit that stops is not restarted.
		for _, unit := range o.Restarts {
			if changed[o.Object] && !stops(b.Diffs, unit) {
				because.add(unit, o.Object.String())
			}
		}
	}
	b.Restarts, err = rc.running(ctx, g, &because)
	return b, err
}

// keepUpdates gives packages their present state as the one to restore, unless an entry gave them their version. One that came
// along with others goes back only with one of these: no other needs its old version.
func (rc *Reconciler) keepUpdates(priors, now []journal.Prior, owned []journal.Owned) {
	back := map[string]bool{} // packages that get another version
	for i, p := range priors {
		is := now[i].State
		switch {
		case p.Object.Kind != provision.KindPackage || !p.State.Exists || is.Attrs["version"] == "":
		case !rc.journal.Changed(p.Object, is):
			priors[i].State = is
		case is.Attrs["version"] != p.State.Attrs["version"]:
			back[p.Object.Name] = true
		}
	}
	for i, p := range priors {
		along := func(o journal.Owned) bool {
			return o.Object == p.Object && cameAlong(o) && !slices.ContainsFunc(namesOf(o), func(name string) bool { return back[name] })
		}
		if p.Object.Kind == provision.KindPackage && back[p.Object.Name] && slices.ContainsFunc(owned, along) {
			priors[i].State = now[i].State
		}
	}
}

// stops reports whether a unit that runs is stopped by a change.
func stops(diffs []provision.Diff, unit string) bool {
	return slices.ContainsFunc(diffs, func(d provision.Diff) bool { return d.Object.Name == unit && d.Stops() })
}

// diffStates compares an object's present state with the one to restore.
func diffStates(o provision.Object, now, then provision.State) provision.Diff {
	d := provision.Diff{Object: o}
	switch {
	case !now.Exists && !then.Exists:
		return d
	case !now.Exists:
		d.Action, d.Reason = provision.Create, "was there"
	case !then.Exists:
		d.Action, d.Reason = provision.Delete, "was not there"
		return d
	case now.Digest != then.Digest:
		d.Action, d.Reason = provision.Modify, "had another content"
		d.Fields = append(d.Fields, provision.Field{Name: "content", From: now.Digest, To: then.Digest})
	case !maps.Equal(now.Attrs, then.Attrs):
		d.Action, d.Reason = provision.Modify, "was different"
	}
	for _, name := range slices.Sorted(maps.Keys(then.Attrs)) {
		if now.Attrs[name] != then.Attrs[name] {
			d.Fields = append(d.Fields, provision.Field{Name: name, From: now.Attrs[name], To: then.Attrs[name]})
		}
	}
	return d
}

// Prune restores what PlanPrune found, and releases its ownership. It undoes a failure, as Apply
// does.
func (rc *Reconciler) Prune(ctx context.Context, b *Back, opts BackOptions) (*Outcome, error) {
	return rc.goBack(ctx, b, opts, journal.Begin{Verb: journal.Prune, Version: rc.Version}, func(left []Left) error {
		now, err := rc.states(ctx, b.objects()) // to which a rollback to this entry returns
		return errors.Join(err, rc.journal.Done("prune", now), rc.journal.Leave(without(b.objects(), left)), rc.keepNeeded(ctx, b.graph, left))
	})
}

// keepNeeded has those packages that a prune left because others need them come along with the packages of the target: they
// would be unwanted for ever, although none of them is named.
func (rc *Reconciler) keepNeeded(ctx context.Context, g *graph, left []Left) error {
	var needed []journal.Prior
	for _, o := range rc.journal.Owned() {
		if cameAlong(o) && slices.ContainsFunc(left, func(l Left) bool { return l.Object == o.Object }) {
			needed = append(needed, o.Prior)
		}
	}
	for _, n := range g.nodes {
		objects, err := n.task.Objects(ctx, rc.Host)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(objects, func(o provision.Object) bool { return o.Kind == provision.KindPackage }) {
			return rc.journal.Own(n.task.ID(), n.meta.Restarts, needed)
		}
	}
	return nil
}

// Rollback restores what PlanRollback found. It is an entry of its own, so that it can be rolled
// back, too. It undoes a failure, as Apply does.
func (rc *Reconciler) Rollback(ctx context.Context, n int, b *Back, opts BackOptions) (*Outcome, error) {
	return rc.goBack(ctx, b, opts, journal.Begin{Verb: journal.Rollback, To: n, Version: rc.Version}, func(left []Left) error {
		_, fresh, gone := rc.journal.Since(n)
		now, err := rc.states(ctx, b.objects())
		// Objects that were not restored, such as a runtime's data, stay ours until a prune.
		given := slices.DeleteFunc(objectsOf(originals(fresh)), func(o provision.Object) bool { return !slices.Contains(b.objects(), o) })
		return errors.Join(err, rc.journal.Done("rollback", now), rc.journal.Leave(without(given, left)), rc.journal.Reown(gone))
	})
}

// goBack restores, then calls owned to record the new owners. Units go through the same steps as in
// an apply: cross-checks when their files are in place, then the restart, then health. It undoes a
// failure.
func (rc *Reconciler) goBack(ctx context.Context, b *Back, opts BackOptions, begin journal.Begin, owned func([]Left) error) (*Outcome, error) {
	if err := b.Consent(opts.AllowDisruption); err != nil {
		return nil, err
	}
	n, err := rc.journal.Begin(begin, nil)
	if err != nil {
		return nil, err
	}
	r := &run{Reconciler: rc, graph: b.graph, pending: rc.journal.Pending(), out: &Outcome{Number: n, Result: journal.OK}}
	err = rc.step(ctx, string(begin.Verb), func(ctx context.Context) error {
		if err := rc.recordBack(ctx, b); err != nil {
			return err
		}
		if opts.Evict != nil {
			if err := opts.Evict(ctx); err != nil {
				return err
			}
		}
		left, err := rc.restore(ctx, b.Priors, b.units(), r.guard(b))
		r.out.Left = left
		return err
	})
	if err != nil {
		out, err := r.end(ctx, err, opts.KeepFailed)
		return out, errors.Join(err, rc.resume(ctx, b))
	}
	if err = owned(r.out.Left); err != nil {
		r.out.Result = journal.Failed
	}
	return r.out, errors.Join(err, rc.journal.End(r.out.Result, err))
}

// guard returns the gates of the units that b starts or restarts.
func (r *run) guard(b *Back) handling {
	touched := func(unit string) bool {
		return slices.ContainsFunc(b.Restarts, func(again Restart) bool { return again.Unit == unit }) ||
			slices.ContainsFunc(b.Diffs, func(d provision.Diff) bool { return d.Object.Name == unit && !d.Stops() })
	}
	each := func(check func(unit string) error) error {
		for _, unit := range slices.Sorted(maps.Keys(r.graph.gates)) {
			if !touched(unit) {
				continue
			}
			if err := check(unit); err != nil {
				return err
			}
		}
		return nil
	}
	return handling{
		restart: func(ctx context.Context, unit string) error {
			return r.restart(ctx, unit, r.graph.restarter(unit))
		},
		before: func(ctx context.Context) error {
			return each(func(unit string) error { return r.before(ctx, unit) })
		},
		after: func(ctx context.Context) error {
			return each(func(unit string) error {
				active, err := r.active(ctx, unit)
				if err != nil || !active {
					return err
				}
				return r.after(ctx, unit)
			})
		},
	}
}

// units lists the restarted units.
func (b *Back) units() []string {
	list := make([]string, len(b.Restarts))
	for i, restart := range b.Restarts {
		list[i] = restart.Unit
	}
	return list
}

func (b *Back) objects() []provision.Object { return objectsOf(b.Priors) }

func objectsOf(priors []journal.Prior) []provision.Object {
	list := make([]provision.Object, len(priors))
	for i, p := range priors {
		list[i] = p.Object
	}
	return list
}

// recordBack records the present states before anything is restored.
func (rc *Reconciler) recordBack(ctx context.Context, b *Back) error {
	owned := map[provision.Object]journal.Owned{}
	for _, o := range rc.journal.Owned() {
		owned[o.Object] = o
	}
	now, err := rc.states(ctx, b.objects())
	if err != nil {
		return err
	}
	for _, p := range now {
		if err := rc.keep(p); err != nil {
			return err
		}
		o := owned[p.Object]
		if err := rc.journal.Touch(o.Task, o.Restarts, []journal.Prior{p}); err != nil {
			return err
		}
	}
	return rc.journal.WantRestart(b.units())
}

// Reset makes the machine what it was before the first apply, and removes the journal. It leaves
// and lists what it could not undo. After an error the journal stays, so that a second reset
// continues. No gates guard a reset, and it is not undone.
func (rc *Reconciler) Reset(ctx context.Context, b *Back, opts BackOptions) (*Outcome, error) {
	if err := b.Consent(opts.AllowDisruption); err != nil {
		return nil, err
	}
	out := &Outcome{Result: journal.OK}
	err := rc.step(ctx, "reset", func(ctx context.Context) error {
		if err := rc.journal.Release(); err != nil { // of a process that was killed
			return err
		}
		// A reset after this one, if it is killed, finds what was kept among what is ours.
		fresh := slices.DeleteFunc(slices.Clone(b.kept), func(p journal.Prior) bool {
			_, ok := rc.journal.Owns(p.Object)
			return ok
		})
		if err := rc.journal.Own("reset", nil, fresh); err != nil {
			return err
		}
		if opts.Evict != nil {
			if err := opts.Evict(ctx); err != nil {
				return err
			}
		}
		var err error
		out.Left, err = rc.restore(ctx, b.Priors, b.units(), handling{restart: rc.Host.Units().Restart})
		// Release the ownership before the journal loses the contents, so that a second reset,
		// after one that was killed while erasing, does not need them.
		if err == nil {
			err = rc.journal.Leave(without(b.objects(), out.Left))
		}
		if err != nil {
			return err
		}
		return rc.journal.Erase()
	})
	if err != nil {
		out.Result = journal.Failed
		err = errors.Join(err, rc.resume(ctx, b))
	}
	return out, err
}

package engine

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

// Back is a way back: what a prune, rollback or reset would restore.
type Back struct {
	// Priors are objects with the states that they get, in the order in which they were
	// touched.
	Priors []journal.Prior `json:"-"`
	// Diffs are those that are not so already.
	Diffs []provision.Diff `json:"diffs"`
	// Restarts lists units that read what changes.
	Restarts []string `json:"restarts,omitempty"`
}

// Empty tells whether there is nothing to go back.
func (b *Back) Empty() bool { return len(b.Priors) == 0 }

// PlanPrune lists what is ours and not wanted by the target.
func (e *Engine) PlanPrune(ctx context.Context, target provision.Target) (*Back, error) {
	g, err := newGraph(target)
	if err != nil {
		return nil, err
	}
	plan, _, err := e.plan(ctx, g)
	if err != nil {
		return nil, err
	}
	return e.back(ctx, originals(plan.Unwanted), plan.Unwanted)
}

// PlanReset lists all that is ours.
func (e *Engine) PlanReset(ctx context.Context) (*Back, error) {
	owned := e.journal.Owned()
	return e.back(ctx, originals(owned), owned)
}

// PlanRollback lists what was touched after entry n.
func (e *Engine) PlanRollback(ctx context.Context, n int) (*Back, error) {
	history := e.journal.History()
	i := slices.IndexFunc(history, func(entry journal.Entry) bool { return entry.Number == n })
	switch {
	case i < 0:
		return nil, fmt.Errorf("entry %d is not in the history: %w", n, errs.NotFound)
	case history[i].Result != journal.OK:
		return nil, fmt.Errorf("entry %d did not end well: it is no state to go back to: %w", n, errs.State)
	}
	priors, _, gone := e.journal.Since(n)
	return e.back(ctx, e.journal.At(n, priors), slices.Concat(e.journal.Owned(), gone))
}

func originals(owned []journal.Owned) []journal.Prior {
	list := make([]journal.Prior, len(owned))
	for i, o := range owned {
		list[i] = o.Prior
	}
	return list
}

// back compares priors with the machine.
func (e *Engine) back(ctx context.Context, priors []journal.Prior, owned []journal.Owned) (*Back, error) {
	b := &Back{Priors: priors}
	changed := map[provision.Object]bool{}
	for _, p := range priors {
		kind, err := e.kind(p.Object)
		if err != nil {
			return nil, err
		}
		now, err := kind.Read(ctx, e.Host, p.Object.Name)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", p.Object, err)
		}
		if d := diffStates(p.Object, now, p.State); d.Action != "" {
			b.Diffs = append(b.Diffs, d)
			changed[p.Object] = true
		}
	}
	for _, o := range owned {
		if changed[o.Object] {
			b.Restarts = union(b.Restarts, o.Restarts)
		}
	}
	// What stops, or does not run, is not restarted.
	b.Restarts = slices.DeleteFunc(b.Restarts, func(unit string) bool {
		active, err := e.active(ctx, unit)
		return err == nil && (!active || slices.ContainsFunc(b.Diffs, func(d provision.Diff) bool {
			return d.Object.Name == unit && d.Stops()
		}))
	})
	return b, nil
}

// diffStates compares what an object is with what it shall be again.
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

// Prune brings back what PlanPrune found, and gives it up.
func (e *Engine) Prune(ctx context.Context, b *Back) (*Outcome, error) {
	return e.goBack(ctx, b, journal.Begin{Verb: journal.Prune, Version: e.Version}, func(left []Left) error {
		return e.journal.Leave(without(b.objects(), left))
	})
}

// Rollback brings back what PlanRollback found. It is an entry of its own, so that it
// can be rolled back, too.
func (e *Engine) Rollback(ctx context.Context, n int, b *Back) (*Outcome, error) {
	return e.goBack(ctx, b, journal.Begin{Verb: journal.Rollback, To: n, Version: e.Version}, func(left []Left) error {
		_, fresh, gone := e.journal.Since(n)
		now, err := e.states(ctx, b.objects())
		return errors.Join(err, e.journal.Done("rollback", now), e.journal.Leave(without(fresh, left)), e.journal.Reown(gone))
	})
}

// goBack restores, then lets owned tell whose the objects are now.
func (e *Engine) goBack(ctx context.Context, b *Back, begin journal.Begin, owned func([]Left) error) (*Outcome, error) {
	n, err := e.journal.Begin(begin, nil)
	if err != nil {
		return nil, err
	}
	out := &Outcome{Number: n, Result: journal.OK}
	err = e.step(ctx, string(begin.Verb), func(ctx context.Context) error {
		if err := e.recordBack(ctx, b); err != nil {
			return err
		}
		left, err := e.restore(ctx, b.Priors, b.Restarts, e.Host.Units().Restart)
		out.Left = left
		if err != nil {
			return err
		}
		return owned(left)
	})
	if err != nil {
		out.Result = journal.Failed
	}
	return out, errors.Join(err, e.journal.End(out.Result, err))
}

func (b *Back) objects() []provision.Object {
	list := make([]provision.Object, len(b.Priors))
	for i, p := range b.Priors {
		list[i] = p.Object
	}
	return list
}

// recordBack writes down what is there before it goes back.
func (e *Engine) recordBack(ctx context.Context, b *Back) error {
	owned := map[provision.Object]journal.Owned{}
	for _, o := range e.journal.Owned() {
		owned[o.Object] = o
	}
	now, err := e.states(ctx, b.objects())
	if err != nil {
		return err
	}
	for _, p := range now {
		if err := e.keep(p); err != nil {
			return err
		}
		o := owned[p.Object]
		if err := e.journal.Touch(o.Task, o.Restarts, []journal.Prior{p}); err != nil {
			return err
		}
	}
	return e.journal.WantRestart(b.Restarts)
}

// Reset makes the machine what it was before the first apply, and forgets all that it
// knew of it. What could not be undone is left and listed; an error keeps the journal,
// so that a second reset goes on.
func (e *Engine) Reset(ctx context.Context, b *Back) (*Outcome, error) {
	out := &Outcome{Result: journal.OK}
	err := e.step(ctx, "reset", func(ctx context.Context) error {
		var err error
		out.Left, err = e.restore(ctx, b.Priors, b.Restarts, e.Host.Units().Restart)
		if err != nil {
			return err
		}
		return e.journal.Erase()
	})
	if err != nil {
		out.Result = journal.Failed
	}
	return out, err
}

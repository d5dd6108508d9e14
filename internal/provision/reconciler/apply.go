package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// ApplyOptions are what the user decides about an apply.
type ApplyOptions struct {
	// NodeFile is the text of the node file, kept for the history.
	NodeFile []byte
	// AllowDisruption consents to the plan's disruptions of running pods.
	AllowDisruption bool
	// KeepFailed leaves the changes of a failed apply in place, for inspection.
	KeepFailed bool
}

// Outcome is what an apply did.
type Outcome struct {
	// Number of the entry in the history; 0 when there was nothing to do.
	Number int `json:"number"`
	// Result of the entry.
	Result journal.Result `json:"result"`
	// Changed lists tasks that changed something.
	Changed []string `json:"changed,omitempty"`
	// Restarted lists units.
	Restarted []string `json:"restarted,omitempty"`
	// Warnings are findings of gates and advice that stop nothing, each with the check's name.
	Warnings []string `json:"warnings,omitempty"`
	// Repaired lists what stays of an apply that was undone: objects that are again as the last
	// successful entry left them.
	Repaired []provision.Object `json:"repaired,omitempty"`
	// Left lists what could not be undone, with reasons.
	Left []Left `json:"left,omitempty"`
}

// Apply makes the machine what the target says. It undoes a failed apply, except for repairs of
// drift. The error says what failed, and the outcome whether the machine is as before.
//
// Order: fetch everything · plan · consent · record the state of all that will change · then, each
// after its needs: gate, change, check again, restart, gate. Nothing is changed before the record.
func (rc *Reconciler) Apply(ctx context.Context, target provision.Target, opts ApplyOptions) (*Outcome, error) {
	g, err := newGraph(target)
	if err != nil {
		return nil, err
	}
	if err := rc.prepare(ctx, g); err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	plan, objects, err := rc.plan(ctx, g)
	if err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	if plan.Empty() && rc.ownsAll(objects) && plan.Unfinished == 0 && len(rc.journal.Pending()) == 0 {
		r := &run{Reconciler: rc, graph: g, out: &Outcome{Result: journal.OK}}
		r.advise(ctx, target.Advice)
		return r.out, nil
	}
	if err := consent(plan.Disruptions(), opts.AllowDisruption); err != nil {
		return nil, err
	}
	n, err := rc.journal.Begin(journal.Begin{Verb: journal.Apply, Version: rc.Version}, opts.NodeFile)
	if err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	r := &run{Reconciler: rc, graph: g, pending: rc.journal.Pending(), keepRepairs: true, out: &Outcome{Number: n}}
	if err = r.recordFirst(ctx, plan); err == nil {
		err = r.all(ctx)
	}
	if err == nil {
		r.advise(ctx, target.Advice)
	}
	return r.end(ctx, err, opts.KeepFailed)
}

// advise reports what probes find on a machine that is as wanted.
func (r *run) advise(ctx context.Context, advice []provision.Probe) {
	for _, p := range advice {
		if !r.Host.Live() {
			return
		}
		ctx := r.warned(ctx, p)
		if err := r.probe(ctx, p); err != nil {
			provision.Warn(ctx, "%v", err)
		}
	}
}

func (rc *Reconciler) ownsAll(objects [][]provision.Object) bool {
	for _, o := range slices.Concat(objects...) {
		if _, ok := rc.journal.Owns(o); !ok {
			return false
		}
	}
	return true
}

// TaskError is a task that could not be prepared or applied.
type TaskError struct {
	// Verb is "prepare" or "apply".
	Verb string
	// Task is its ID, Why the part of the node file that it is for.
	Task, Why string
	Err       error
}

// Error names the task and that part.
func (e *TaskError) Error() string {
	of := ""
	if e.Why != "" {
		of = " (for " + e.Why + ")"
	}
	return fmt.Sprintf("cannot %s %s%s: %v", e.Verb, e.Task, of, e.Err)
}

// Unwrap has the cause.
func (e *TaskError) Unwrap() error { return e.Err }

// prepare fetches what tasks need, several at a time.
func (rc *Reconciler) prepare(ctx context.Context, g *graph) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, n := range g.nodes {
		p, ok := n.task.(provision.Preparer)
		if !ok {
			continue
		}
		group.Go(func() error {
			err := within(ctx, rc.taskDeadline(n.task), func(ctx context.Context) error {
				return rc.retry(ctx, "prepare "+n.task.ID(), func(ctx context.Context) error { return p.Prepare(ctx, rc.Host) })
			})
			if err != nil {
				return &TaskError{Verb: "prepare", Task: n.task.ID(), Why: n.meta.Why, Err: err}
			}
			return nil
		})
	}
	return group.Wait()
}

// retry calls f again while its errors are transient, with growing pauses.
func (rc *Reconciler) retry(ctx context.Context, what string, f func(ctx context.Context) error) error {
	deadline := rc.Now().Add(rc.RetryFor)
	for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
		err := f(ctx)
		if err == nil || !errors.Is(err, errs.Unavailable) || ctx.Err() != nil || rc.Now().Add(pause).After(deadline) {
			return err
		}
		rc.Report.Note(what, fmt.Sprintf("%v; again in %s", err, pause))
		if rc.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// end undoes a run that failed, and closes its entry.
func (r *run) end(ctx context.Context, cause error, keepFailed bool) (*Outcome, error) {
	// The undo runs to its end, also when the user cancels.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoFor)
	defer cancel()
	r.out.Result = journal.OK
	if cause != nil && keepFailed {
		r.out.Result = journal.Failed
	} else if cause != nil {
		r.out.Result = journal.RolledBack
		if err := errors.Join(r.journal.Release(), r.undo(ctx)); err != nil {
			r.out.Result = journal.Failed
			cause = errors.Join(cause, fmt.Errorf("cannot undo all of it: %w", err))
		} else if err := r.healthAfterUndo(ctx); err != nil {
			cause = errors.Join(cause, err)
		}
	}
	err := r.journal.End(r.out.Result, cause)
	switch {
	case err != nil && cause == nil:
		return r.out, fmt.Errorf("the machine is as wanted, but the history lacks the end of entry %d: %w", r.out.Number, err)
	case err != nil:
		cause = errors.Join(cause, fmt.Errorf("the history lacks the end of entry %d: %w", r.out.Number, err))
	}
	return r.out, cause
}

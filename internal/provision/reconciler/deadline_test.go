package reconciler_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// hung is a task that waits forever at the point in where.
type hung struct {
	tasks.File
	where string
	// left gets the remaining time of the context when the wait begins.
	left *time.Duration
}

// Deadline is short.
func (hung) Deadline() time.Duration { return 20 * time.Millisecond }

func (h hung) wait(ctx context.Context, where string) error {
	if h.where != where {
		return nil
	}
	if end, ok := ctx.Deadline(); ok {
		*h.left = time.Until(end)
	}
	<-ctx.Done()
	return errors.New("signal: terminated")
}

func (h hung) Prepare(ctx context.Context, _ provision.Host) error { return h.wait(ctx, "prepare") }

func (h hung) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	if err := h.wait(ctx, "check"); err != nil {
		return provision.Change{}, err
	}
	return h.File.Check(ctx, host)
}

func (h hung) Apply(ctx context.Context, host provision.Host) error {
	if err := h.wait(ctx, "apply"); err != nil {
		return err
	}
	return h.File.Apply(ctx, host)
}

func TestTaskHasADeadline(t *testing.T) {
	for _, where := range []string{"prepare", "check", "apply"} {
		t.Run(where, func(t *testing.T) {
			h := machine(t)
			before := h.Tree(reconciler.StateDir, "/var/lib/berth")
			target := fullTarget()
			left := time.Duration(math.MaxInt64)
			target.Tasks = append(target.Tasks, hung{tasks.File{Path: "/etc/hung", Content: "x"}, where, &left})
			out, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{})
			if !errors.Is(err, errs.Deadline) {
				t.Fatalf("apply returned %+v, %v; want an error of a deadline", out, err)
			}
			for _, want := range []string{"file /etc/hung", "after 20ms", "signal: terminated"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not say %q", err, want)
				}
			}
			if left > 20*time.Millisecond {
				t.Errorf("the task had %s, want no more than it says", left)
			}
			if out != nil && out.Result != journal.RolledBack {
				t.Errorf("the outcome is %+v, want it undone", out)
			}
			if diff := cmp.Diff(before, h.Tree(reconciler.StateDir, "/var/lib/berth")); diff != "" {
				t.Errorf("the machine is not as before (-before +after):\n%s", diff)
			}
		})
	}
}

// TestDeadlineIsTheUsers: the user's deadline takes precedence over a kind's default. The error of
// an apply that the user interrupts names no deadline.
func TestDeadlineIsTheUsers(t *testing.T) {
	e := newReconciler(t, machine(t))
	var usual time.Duration
	ctx, cancel := context.WithCancel(t.Context())
	e.TaskFor = func(task provision.Task, kinds time.Duration) time.Duration {
		if task.ID() == "file /etc/hung" {
			usual = kinds
			cancel()
		}
		return time.Hour
	}
	target := fullTarget()
	target.Tasks = append(target.Tasks, hung{tasks.File{Path: "/etc/hung", Content: "x"}, "apply", new(time.Duration)})
	_, err := e.Apply(ctx, target, reconciler.ApplyOptions{})
	if err == nil || errors.Is(err, errs.Deadline) {
		t.Errorf("an interrupted apply returned %v", err)
	}
	if usual != 20*time.Millisecond {
		t.Errorf("the kind's deadline is told as %s", usual)
	}
}

// TestHungProbe: a probe that hangs is ended, too. Within the time of a test it is enough that the
// context has a deadline.
func TestHungProbe(t *testing.T) {
	h := machine(t)
	target := fullTarget()
	bounded := 0
	checkAll := deadlineProbe{&bounded}
	target.Gates = []provision.Gate{{Unit: "rt.service", Before: []provision.Probe{checkAll}, After: []provision.Probe{checkAll}}}
	target.Advice = []provision.Probe{checkAll}
	apply(t, h, target)
	if bounded != 3 {
		t.Errorf("%d of 3 probes have a deadline", bounded)
	}
}

type deadlineProbe struct{ bounded *int }

func (deadlineProbe) Name() string { return "look" }

func (p deadlineProbe) Run(ctx context.Context, _ provision.Host) error {
	if _, ok := ctx.Deadline(); ok {
		*p.bounded++
	}
	return nil
}

// stuck is a kind with one object whose rollback blocks until its context ends.
type stuck struct{ provision.Kind }

func (stuck) Deadline() time.Duration { return 20 * time.Millisecond }

func (s stuck) Restore(ctx context.Context, host provision.Host, name string, state provision.State, content provision.Content) error {
	if name != "/etc/stuck" {
		return s.Kind.Restore(ctx, host, name, state, content)
	}
	<-ctx.Done()
	return errors.New("signal: terminated")
}

// TestWayBackHasADeadline: an object that cannot be rolled back takes no time from the others. The
// result names it.
func TestWayBackHasADeadline(t *testing.T) {
	h := machine(t)
	apply(t, h, provision.Target{Tasks: []provision.Task{
		tasks.File{Path: "/etc/a", Content: "x"}, tasks.File{Path: "/etc/stuck", Content: "x"}, tasks.File{Path: "/etc/z", Content: "x"},
	}})
	kinds := tasks.Kinds()
	kinds[provision.KindFile] = stuck{kinds[provision.KindFile]}
	e, err := reconciler.New(reconciler.Config{Host: h, Kinds: kinds})
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.PlanReset(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = e.Reset(ctx, b, reconciler.BackOptions{})
	if ctx.Err() != nil || !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), "cannot restore file /etc/stuck: it was not done after 20ms") {
		t.Errorf("reset returned %v", err)
	}
	for _, name := range []string{"/etc/a", "/etc/z"} {
		if _, err := h.Files().Stat(name); !errors.Is(err, errs.NotFound) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
}

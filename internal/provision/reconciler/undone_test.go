package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

func TestUnitThatDoesNotStartIsUndone(t *testing.T) {
	h := machine(t)
	before := h.Tree(reconciler.StateDir, "/var/lib/berth")
	broken := fullTarget()
	yes := true
	broken.Tasks = append(broken.Tasks, tasks.Unit{
		M: provision.Meta{Needs: []string{"unit rt.service"}}, Name: "bad.service", Content: "[Service]\n", Enable: &yes, Running: tasks.Started,
	})
	h.Broken["bad.service"] = "exit-code"
	out, err := newReconciler(t, h).Apply(t.Context(), broken, reconciler.ApplyOptions{})
	if err == nil || out.Result != journal.RolledBack || !strings.Contains(err.Error(), "bad.service") {
		t.Fatalf("apply returned %+v, %v; want an error that names bad.service, and all undone", out, err)
	}
	if diff := cmp.Diff(before, h.Tree(reconciler.StateDir, "/var/lib/berth")); diff != "" {
		t.Errorf("the machine is not as before (-before +after):\n%s", diff)
	}
}

// TestUnitThatDoesNotRestartIsUndone: the previous unit runs again, with its previous files.
func TestUnitThatDoesNotRestartIsUndone(t *testing.T) {
	h := machine(t)
	target := func(content string) provision.Target {
		target := fullTarget()
		target.Tasks = append(target.Tasks, tasks.File{M: provision.Meta{Restarts: []string{"rt.service"}}, Path: "/etc/level", Content: content})
		return target
	}
	apply(t, h, target("good"))
	bad := target("bad")
	bad.Gates = []provision.Gate{{Unit: "rt.service", Before: []provision.Probe{probe{"it is about to break", func() error {
		h.Broken["rt.service"] = "bad level"
		return nil
	}}}}}
	e := newReconciler(t, h)
	e.Wanted = func(context.Context, int) (provision.Target, error) { // runs when all files are restored
		delete(h.Broken, "rt.service")
		return target("good"), nil
	}
	out, err := e.Apply(t.Context(), bad, reconciler.ApplyOptions{})
	if err == nil || out.Result != journal.RolledBack {
		t.Fatalf("apply returned %+v, %v; want it undone", out, err)
	}
	if state, err := h.Units().State(t.Context(), "rt.service"); err != nil || state.Active != "active" {
		t.Errorf("rt.service is %s, %v; it ran before", state.Active, err)
	}
	converged(t, h, target("good"))
}

// probe is a check of a gate.
type probe struct {
	name string
	run  func() error
}

func (p probe) Name() string                              { return p.name }
func (p probe) Run(context.Context, provision.Host) error { return p.run() }

// warning is a check that does not block.
type warning struct{}

func (warning) Name() string { return "look" }
func (warning) Run(ctx context.Context, _ provision.Host) error {
	provision.Warn(ctx, "it is %s", "so-so")
	return nil
}

func TestGates(t *testing.T) {
	sick := errors.New("no answer")
	for _, c := range []struct {
		name          string
		before, after error
		restarts      int // of rt.service, including the one of the undo
	}{
		{"healthy", nil, nil, 1},
		{"refused before", sick, nil, 0},
		{"sick after", nil, sick, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t)
			before := h.Tree(reconciler.StateDir, "/var/lib/berth")
			target := fullTarget()
			target.Gates = []provision.Gate{{
				Unit:   "rt.service",
				Before: []provision.Probe{probe{"cross-check", func() error { return c.before }}},
				After:  []provision.Probe{warning{}, probe{"health", func() error { return c.after }}},
			}}
			out, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{})
			if want := []string{"look: it is so-so"}; c.before == nil && !slices.Equal(out.Warnings, want) {
				t.Errorf("warnings %q, want %q", out.Warnings, want)
			}
			if (err != nil) != (c.before != nil || c.after != nil) || err != nil && !errors.Is(err, sick) {
				t.Errorf("error %v", err)
			}
			if got := h.Restarts("rt.service"); got != c.restarts {
				t.Errorf("%d restarts, want %d", got, c.restarts)
			}
			if err != nil {
				if diff := cmp.Diff(before, h.Tree(reconciler.StateDir, "/var/lib/berth")); diff != "" {
					t.Errorf("the machine is not as before (-before +after):\n%s", diff)
				}
			}
		})
	}
}

// TestHopelessGate: a check that reports Unsupported is not retried, because its result will not
// change.
func TestHopelessGate(t *testing.T) {
	tries := 0
	target := fullTarget()
	target.Gates = []provision.Gate{{Unit: "rt.service", After: []provision.Probe{probe{"health", func() error {
		tries++
		return fmt.Errorf("no CRI: %w", errs.Unsupported)
	}}}}}
	if _, err := newReconciler(t, machine(t)).Apply(t.Context(), target, reconciler.ApplyOptions{}); !errors.Is(err, errs.Unsupported) {
		t.Errorf("error %v", err)
	}
	if tries != 1 {
		t.Errorf("it was asked %d times, want once", tries)
	}
}

// TestAdvice: an apply reports advice, even if it has nothing to do. Advice undoes nothing.
func TestAdvice(t *testing.T) {
	h := machine(t)
	target := fullTarget()
	target.Advice = []provision.Probe{warning{}, probe{"sick", func() error { return errors.New("no answer") }}}
	for _, what := range []string{"first", "second"} {
		out := apply(t, h, target)
		if want := []string{"look: it is so-so", "sick: no answer"}; !slices.Equal(out.Warnings, want) || out.Result != journal.OK {
			t.Errorf("%s apply: %s, warnings %q, want %q", what, out.Result, out.Warnings, want)
		}
	}
	converged(t, h, target)
}

// TestHealthAfterUndo: after an undo the gates of the restored state run, and not those of the
// failed one.
func TestHealthAfterUndo(t *testing.T) {
	wrong, sick := errors.New("no answer on the new socket"), errors.New("no answer on the old socket")
	for _, c := range []struct {
		name    string
		earlier bool  // an apply before the failing one
		old     error // its health check's error
	}{
		{"nothing before", false, nil},
		{"healthy again", true, nil},
		{"sick before", true, sick},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t)
			var old error
			asked := 0
			target := func(level string, health func() error) provision.Target {
				target := fullTarget()
				target.Tasks = append(target.Tasks, tasks.File{M: provision.Meta{Restarts: []string{"rt.service"}}, Path: "/etc/level", Content: level})
				target.Gates = []provision.Gate{{Unit: "rt.service", After: []provision.Probe{probe{"health of " + level, health}}}}
				return target
			}
			first := target("1", func() error { asked++; return old })
			if c.earlier {
				apply(t, h, first)
			}
			old, asked = c.old, 0
			e := newReconciler(t, h)
			e.Wanted = func(_ context.Context, entry int) (provision.Target, error) {
				if entry != 1 {
					t.Errorf("entry %d is asked for, want 1", entry)
				}
				return first, nil
			}
			out, err := e.Apply(t.Context(), target("2", func() error { return wrong }), reconciler.ApplyOptions{})
			if !errors.Is(err, wrong) || out.Result != journal.RolledBack {
				t.Fatalf("%v, %+v", err, out)
			}
			if got, want := strings.Contains(err.Error(), "as before, but"), c.old != nil; got != want || want && !errors.Is(err, sick) {
				t.Errorf("after the undoing: %v", err)
			}
			if n := strings.Count(err.Error(), wrong.Error()); n != 1 || (asked > 0) != c.earlier {
				t.Errorf("the failed health check is told %d times, that of before asked %d times: %v", n, asked, err)
			}
		})
	}
}

package reconciler_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// guarded is a target with one unit, a file, and a gate that returns the values of the fields.
type guarded struct {
	before, after error
	disrupts      string
	asked         []string
}

func (g *guarded) target(content string, more ...provision.Task) provision.Target {
	yes := true
	ask := func(name string, err *error) provision.Probe {
		return probe{name, func() error { g.asked = append(g.asked, name); return *err }}
	}
	return provision.Target{
		Tasks: append([]provision.Task{
			tasks.File{M: provision.Meta{Restarts: []string{"rt.service"}}, Path: "/etc/rt.conf", Content: content},
			tasks.Unit{
				M: provision.Meta{Needs: []string{"file /etc/rt.conf"}}, Name: "rt.service", Enable: &yes, Running: tasks.Started,
				Content: "[Service]\n", RestartDisrupts: g.disrupts,
			},
		}, more...),
		Gates: []provision.Gate{{
			Unit:   "rt.service",
			Before: []provision.Probe{ask("cross-check", &g.before)},
			After:  []provision.Probe{ask("health", &g.after)},
		}},
	}
}

// TestBackIsGuarded: a rollback restarts units as apply does, with the gates of the state that it
// restores. If it fails, it is undone.
func TestBackIsGuarded(t *testing.T) {
	sick := errors.New("no answer")
	for _, c := range []struct {
		name          string
		before, after error
		restarts      int // of rt.service, including the one of the undo
		asked         []string
	}{
		{"healthy", nil, nil, 1, []string{"cross-check", "health"}},
		{"refused before", sick, nil, 0, []string{"cross-check"}},
		{"sick after", nil, sick, 2, []string{"cross-check", "health"}},
	} {
		extra := tasks.File{M: provision.Meta{Restarts: []string{"rt.service"}}, Path: "/etc/rt.extra", Content: "x"}
		for verb, back := range map[journal.Verb]func(e *reconciler.Reconciler, g *guarded) (*reconciler.Outcome, error){
			journal.Rollback: func(e *reconciler.Reconciler, g *guarded) (*reconciler.Outcome, error) {
				b, err := e.PlanRollback(t.Context(), 1, g.target("1"))
				if err != nil {
					t.Fatal(err)
				}
				return e.Rollback(t.Context(), 1, b, reconciler.BackOptions{})
			},
			journal.Prune: func(e *reconciler.Reconciler, g *guarded) (*reconciler.Outcome, error) {
				b, err := e.PlanPrune(t.Context(), g.target("2"))
				if err != nil {
					t.Fatal(err)
				}
				return e.Prune(t.Context(), b, reconciler.BackOptions{})
			},
		} {
			t.Run(string(verb)+"/"+c.name, func(t *testing.T) {
				h, g := machine(t), &guarded{}
				apply(t, h, g.target("1"))
				apply(t, h, g.target("2", extra))
				tree := h.Tree(reconciler.StateDir)
				restarts := h.Restarts("rt.service")
				g.before, g.after, g.asked = c.before, c.after, nil

				out, err := back(newReconciler(t, h), g)
				if (err != nil) != (c.before != nil || c.after != nil) || err != nil && !errors.Is(err, sick) {
					t.Errorf("error %v", err)
				}
				if got := h.Restarts("rt.service") - restarts; got != c.restarts {
					t.Errorf("%d restarts, want %d", got, c.restarts)
				}
				if asked := slices.Compact(slices.Clone(g.asked)); !slices.Equal(asked[:min(len(asked), len(c.asked))], c.asked) {
					t.Errorf("asked %v, want first %v", g.asked, c.asked)
				}
				gone := !slices.ContainsFunc(h.Tree(), func(line string) bool { return strings.HasPrefix(line, "/etc/rt.extra ") })
				if c.before == nil && c.after == nil {
					if err != nil || out.Result != journal.OK || !gone {
						t.Errorf("outcome %+v, %v; /etc/rt.extra is gone: %t", out, err, gone)
					}
					return
				}
				if out.Result != journal.RolledBack {
					t.Errorf("result %q, want %q", out.Result, journal.RolledBack)
				}
				if diff := cmp.Diff(tree, h.Tree(reconciler.StateDir)); diff != "" {
					t.Errorf("the machine is not as before (-before +after):\n%s", diff)
				}
				g.before, g.after = nil, nil
				converged(t, h, g.target("2", extra))
				if plan, err := newReconciler(t, h).Plan(t.Context(), g.target("2", extra)); err != nil || len(plan.Unwanted) > 0 || len(plan.Restarts) > 0 {
					t.Errorf("after the undoing: %+v, %v", plan, err)
				}
			})
		}
	}
}

// TestBackNeedsConsent: a rollback that affects running pods changes nothing without consent.
func TestBackNeedsConsent(t *testing.T) {
	for name, spoil := range map[string]func(g *guarded, b *reconciler.Back){
		"restart": func(*guarded, *reconciler.Back) {},
		"stop": func(g *guarded, b *reconciler.Back) {
			b.Restarts, b.Stops = nil, []string{"rt.service stops, and 2 pods"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, g := machine(t), &guarded{}
			apply(t, h, g.target("1"))
			apply(t, h, g.target("2"))
			g.disrupts = "all end"
			e := newReconciler(t, h)
			b, err := e.PlanRollback(t.Context(), 1, g.target("1"))
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Restarts) != 1 || b.Restarts[0].Disrupts != "all end" || !slices.Equal(b.Restarts[0].Because, []string{"file /etc/rt.conf"}) {
				t.Errorf("restarts %+v, want rt.service with its reason and what it does to pods", b.Restarts)
			}
			spoil(g, b)
			ops := len(h.Ops())
			if _, err := e.Rollback(t.Context(), 1, b, reconciler.BackOptions{}); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), b.Disruptions()[0]) {
				t.Errorf("error %v, want one that says what happens to pods", err)
			}
			if got := h.Ops()[ops:]; len(got) > 0 {
				t.Errorf("without consent it changed %v", got)
			}
			evicted := false
			evict := func(context.Context) error { evicted = true; return nil }
			if _, err := e.Rollback(t.Context(), 1, b, reconciler.BackOptions{AllowDisruption: true, Evict: evict}); err != nil || !evicted {
				t.Errorf("with consent: %v, pods were stopped: %t", err, evicted)
			}
		})
	}
}

// TestWishOfAnEntry: after rollbacks and prunes, each entry has the node file from which its state
// was applied.
func TestWishOfAnEntry(t *testing.T) {
	h, g := machine(t), &guarded{}
	with := func(nodeFile string, target provision.Target) {
		t.Helper()
		if _, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{NodeFile: []byte(nodeFile)}); err != nil {
			t.Fatal(err)
		}
	}
	with("first", g.target("1"))
	with("second", g.target("2", tasks.File{Path: "/etc/rt.extra", Content: "x"}))
	e := newReconciler(t, h)
	b, err := e.PlanPrune(t.Context(), g.target("2"))
	if err == nil {
		_, err = e.Prune(t.Context(), b, reconciler.BackOptions{})
	}
	if err == nil {
		b, err = e.PlanRollback(t.Context(), 1, provision.Target{})
	}
	if err == nil {
		_, err = e.Rollback(t.Context(), 1, b, reconciler.BackOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	j := e.Journal()
	first, second := j.History()[0].NodeFile, j.History()[1].NodeFile
	for n, want := range map[int]string{0: "", 1: first, 2: second, 3: second, 4: first} {
		if got := j.NodeFile(n); got != want {
			t.Errorf("entry %d is of %q, want %q", n, got, want)
		}
	}
}

// TestDataOfARuntime: files that a program created by itself are not a user's change. They are
// removed when the apply that installed the program is undone. A later rollback still treats them
// as berth's.
func TestDataOfARuntime(t *testing.T) {
	made := func(h *provisiontest.Host) {
		t.Helper()
		if err := h.Files().Mkdir("/var/lib/images", provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	data := tasks.Data{Path: "/var/lib/images"}
	there := func(h *provisiontest.Host) bool {
		return slices.ContainsFunc(h.Tree(), func(line string) bool { return strings.HasPrefix(line, "/var/lib/images ") })
	}

	h, g := machine(t), &guarded{}
	apply(t, h, g.target("1"))
	target := g.target("2", data)
	first := true
	target.Gates[0].After = []provision.Probe{probe{"health", func() error {
		if first {
			made(h)
		}
		first = false
		return errors.New("no answer")
	}}}
	if out, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{}); err == nil || out.Result != journal.RolledBack || there(h) {
		t.Errorf("apply: %+v, %v; the data is there: %t", out, err, there(h))
	}

	apply(t, h, g.target("2", data))
	made(h)
	e := newReconciler(t, h)
	b, err := e.PlanRollback(t.Context(), 1, g.target("1"))
	if err == nil {
		_, err = e.Rollback(t.Context(), 1, b, reconciler.BackOptions{})
	}
	if err != nil || !there(h) {
		t.Fatalf("rollback: %v; the data is there: %t", err, there(h))
	}
	plan, err := newReconciler(t, h).Plan(t.Context(), g.target("1"))
	if err != nil || len(plan.Unwanted) != 1 || plan.Unwanted[0].Object.Name != "/var/lib/images" {
		t.Errorf("after the rollback %+v is unwanted, want the data: %v", plan.Unwanted, err)
	}
}

// TestRollbackToAPrune: what a prune removed, and a later apply created again, is not there after a rollback to the prune.
func TestRollbackToAPrune(t *testing.T) {
	h := machine(t)
	keep := tasks.File{Path: "/etc/keep", Content: "k"}
	yes := true
	with := func(content string) provision.Target {
		return provision.Target{Tasks: []provision.Task{
			keep,
			tasks.File{Path: "/etc/extra", Content: content},
			tasks.Unit{Name: "extra.service", Content: "[Service]\n", Enable: &yes, Running: tasks.Started},
		}}
	}
	without := provision.Target{Tasks: []provision.Task{keep}}
	apply(t, h, with("1"))
	apply(t, h, without)
	e := newReconciler(t, h)
	b, err := e.PlanPrune(t.Context(), without)
	if err == nil {
		_, err = e.Prune(t.Context(), b, reconciler.BackOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	want := h.Tree(reconciler.StateDir)
	apply(t, h, with("2"))
	e = newReconciler(t, h)
	b, err = e.PlanRollback(t.Context(), 2, without)
	if err == nil {
		_, err = e.Rollback(t.Context(), 2, b, reconciler.BackOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.Tree(reconciler.StateDir)); diff != "" {
		t.Errorf("the machine is not as after the prune (-want +got):\n%s", diff)
	}
	plan, err := newReconciler(t, h).Plan(t.Context(), without)
	if err != nil || len(plan.Unwanted) > 0 {
		t.Errorf("after the rollback %+v is unwanted: %v", plan.Unwanted, err)
	}
}

// TestRollbackOverAPrune: a file that somebody made in the place of a pruned one stays his after a rollback to an entry that
// did not want the file.
func TestRollbackOverAPrune(t *testing.T) {
	h := machine(t)
	keep := func(content string) provision.Task { return tasks.File{Path: "/etc/keep", Content: content} }
	extra := tasks.File{Path: "/etc/extra", Content: "berth's"}
	apply(t, h, provision.Target{Tasks: []provision.Task{keep("1"), extra}})
	without := provision.Target{Tasks: []provision.Task{keep("1")}}
	e := newReconciler(t, h)
	b, err := e.PlanPrune(t.Context(), without)
	if err == nil {
		_, err = e.Prune(t.Context(), b, reconciler.BackOptions{})
	}
	if err == nil {
		err = h.Files().Write("/etc/extra", strings.NewReader("somebody's"), provision.Attr{Mode: 0o600})
	}
	if err != nil {
		t.Fatal(err)
	}
	without = provision.Target{Tasks: []provision.Task{keep("2")}}
	n := apply(t, h, without).Number
	want := h.Tree(reconciler.StateDir)
	apply(t, h, provision.Target{Tasks: []provision.Task{keep("2"), extra}})
	e = newReconciler(t, h)
	b, err = e.PlanRollback(t.Context(), n, without)
	if err == nil {
		_, err = e.Rollback(t.Context(), n, b, reconciler.BackOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.Tree(reconciler.StateDir)); diff != "" {
		t.Errorf("the machine is not as before the file was wanted again (-want +got):\n%s", diff)
	}
}

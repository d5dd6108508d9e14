package reconciler_test

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// changedTarget is fullTarget with some tasks removed and others added.
func changedTarget() provision.Target {
	target := fullTarget()
	target.Tasks = slices.DeleteFunc(target.Tasks, func(task provision.Task) bool {
		return slices.Contains([]string{"link /usr/bin/docker", "command hook", "packages conntrack", "dir /var/lib/rt/data"}, task.ID())
	})
	for i, task := range target.Tasks {
		if file, ok := task.(tasks.File); ok {
			file.Content = "a = 2\n"
			target.Tasks[i] = file
		}
	}
	target.Tasks = append(target.Tasks, tasks.File{M: provision.Meta{Restarts: []string{"rt.service"}}, Path: "/etc/new/file", Content: "x"})
	return target
}

// brokenTarget is fullTarget with a unit that fails to start after all other tasks are done.
func brokenTarget(h *provisiontest.Host) provision.Target {
	h.Broken["bad.service"] = "exit-code"
	yes := true
	target := fullTarget()
	target.Tasks = append(target.Tasks, tasks.Unit{
		M: provision.Meta{Needs: []string{"unit rt.service"}}, Name: "bad.service", Content: "[Service]\n", Enable: &yes, Running: tasks.Started,
	})
	return target
}

// TestInterruptedUntilOneEndsWell: a failed apply after one that was killed is undone to what that one left, which stays to be
// continued.
func TestInterruptedUntilOneEndsWell(t *testing.T) {
	h := machine(t)
	target := func(content string) provision.Target {
		return provision.Target{Tasks: []provision.Task{tasks.File{Path: "/etc/x", Content: content}}}
	}
	unfinished := func(want int) {
		t.Helper()
		if plan, err := newReconciler(t, h).Plan(t.Context(), target("1")); err != nil || plan.Unfinished != want {
			t.Errorf("entry %d is unfinished, want %d: %v", plan.Unfinished, want, err)
		}
	}
	apply(t, h, target("1"))
	h.Fault = func(_ int, op string) provisiontest.Fault {
		if op == "write /etc/x" {
			return provisiontest.KillAfter
		}
		return provisiontest.None
	}
	if _, err := newReconciler(t, h).Apply(t.Context(), target("2"), reconciler.ApplyOptions{}); !errors.Is(err, provisiontest.ErrKilled) {
		t.Fatalf("apply: %v", err)
	}
	h.StartProcess()
	unfinished(2)
	if _, err := newReconciler(t, h).Apply(t.Context(), brokenTarget(h), reconciler.ApplyOptions{}); err == nil {
		t.Fatal("want an error for a unit that does not start")
	}
	unfinished(2)
	apply(t, h, target("1"))
	unfinished(0)
}

// TestLeftByAKilledWrite: what a killed write left goes with the next apply, also if that one has nothing to write there.
func TestLeftByAKilledWrite(t *testing.T) {
	h := machine(t)
	a := provision.Target{Tasks: []provision.Task{tasks.File{Path: "/etc/x", Content: "a"}}}
	apply(t, h, a)
	h.Fault = func(_ int, op string) provisiontest.Fault {
		if op == "write /etc/x" {
			return provisiontest.KillBefore
		}
		return provisiontest.None
	}
	b := provision.Target{Tasks: []provision.Task{tasks.File{Path: "/etc/x", Content: "b"}}}
	if _, err := newReconciler(t, h).Apply(t.Context(), b, reconciler.ApplyOptions{}); !errors.Is(err, provisiontest.ErrKilled) {
		t.Fatalf("apply: %v", err)
	}
	h.StartProcess()
	if err := h.Files().Write("/etc/x.left", strings.NewReader("b"), provision.Attr{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	apply(t, h, a)
	if provision.Exists(h.Files(), "/etc/x.left") {
		t.Error("it stays")
	}
}

// TestResetAfterAKilledMkdir: what a killed creation of a directory left goes with a reset, also in the directories of the
// journal. It would keep the directory around it.
func TestResetAfterAKilledMkdir(t *testing.T) {
	for _, dir := range []string{"/etc/net", "/etc/net/conf.d", path.Dir(reconciler.StateDir), reconciler.StateDir} {
		for _, again := range []bool{false, true} {
			h := machine(t)
			before := h.Tree()
			h.Fault = func(_ int, op string) provisiontest.Fault {
				if op == "mkdir "+dir {
					return provisiontest.KillBefore
				}
				return provisiontest.None
			}
			target := provision.Target{Tasks: []provision.Task{tasks.File{Path: "/etc/net/conf.d/x", Content: "a"}}}
			if _, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{}); !errors.Is(err, provisiontest.ErrKilled) {
				t.Fatalf("apply: %v", err)
			}
			h.StartProcess()
			if err := h.Files().Mkdir(dir+".left", provision.Attr{Mode: 0o700}); err != nil {
				t.Fatal(err)
			}
			if again {
				apply(t, h, target)
			}
			reset(t, h, before)
		}
	}
}

// TestKilledOnTheWayBack kills the process before, during and after every operation of a rollback.
// The same verb, or an apply, completes it. A reset leaves the machine as before the first apply.
func TestKilledOnTheWayBack(t *testing.T) {
	for name, c := range map[string]struct {
		// ready prepares the machine on which the verb starts.
		ready func(t *testing.T, h *provisiontest.Host)
		verb  func(t *testing.T, h *provisiontest.Host) error
		// next is the target to apply after the kill. nil means the same verb again.
		next func() provision.Target
		// from is the operation after which the rollback begins. Empty means at once.
		from string
	}{
		"undo": {
			func(*testing.T, *provisiontest.Host) {},
			func(t *testing.T, h *provisiontest.Host) error {
				_, err := newReconciler(t, h).Apply(t.Context(), brokenTarget(h), reconciler.ApplyOptions{})
				if err == nil {
					t.Error("want an error for a unit that does not start")
				}
				return err
			}, fullTarget, "start bad.service",
		},
		"undo of a change": {
			func(t *testing.T, h *provisiontest.Host) { apply(t, h, changedTarget()) },
			func(t *testing.T, h *provisiontest.Host) error {
				_, err := newReconciler(t, h).Apply(t.Context(), brokenTarget(h), reconciler.ApplyOptions{})
				return err
			}, changedTarget, "start bad.service",
		},
		"rollback": {
			func(t *testing.T, h *provisiontest.Host) { apply(t, h, fullTarget()); apply(t, h, changedTarget()) },
			func(t *testing.T, h *provisiontest.Host) error {
				e := newReconciler(t, h)
				b, err := e.PlanRollback(t.Context(), 1, fullTarget())
				if err == nil {
					_, err = e.Rollback(t.Context(), 1, b, reconciler.BackOptions{})
				}
				return err
			}, fullTarget, "",
		},
		"prune": {
			func(t *testing.T, h *provisiontest.Host) { apply(t, h, fullTarget()); apply(t, h, changedTarget()) },
			func(t *testing.T, h *provisiontest.Host) error {
				e := newReconciler(t, h)
				b, err := e.PlanPrune(t.Context(), changedTarget())
				if err == nil {
					_, err = e.Prune(t.Context(), b, reconciler.BackOptions{})
				}
				return err
			}, changedTarget, "",
		},
		"reset": {
			func(t *testing.T, h *provisiontest.Host) { apply(t, h, fullTarget()); apply(t, h, changedTarget()) },
			func(t *testing.T, h *provisiontest.Host) error {
				e := newReconciler(t, h)
				b, err := e.PlanReset(t.Context())
				if err == nil {
					_, err = e.Reset(t.Context(), b, reconciler.BackOptions{})
				}
				return err
			}, nil, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := machine(t)
			before := h.Tree()
			c.ready(t, h)
			ready := len(h.Ops())
			_ = c.verb(t, h) // an undo returns the error that it undoes
			back := h.Ops()[ready:]
			back = back[slices.Index(back, c.from)+1:]
			// A kill during an operation equals a kill before it, unless the operation is not
			// atomic. A kill after an operation equals a kill before the next one.
			for _, fault := range []provisiontest.Fault{provisiontest.KillIn, provisiontest.KillAfter} {
				for at := range back {
					if fault == provisiontest.KillAfter && at+1 < len(back) && !strings.HasPrefix(back[at+1], "append ") {
						continue
					}
					t.Run(fmt.Sprintf("%d/%d", fault, at), func(t *testing.T) {
						t.Parallel()
						h := machine(t)
						c.ready(t, h)
						steps, killed := -1, false
						if c.from == "" {
							steps = 0
						}
						h.Fault = func(_ int, op string) provisiontest.Fault {
							if steps == at {
								killed = true
								return fault
							}
							if steps >= 0 || op == c.from {
								steps++
							}
							return provisiontest.None
						}
						if err := c.verb(t, h); !errors.Is(err, provisiontest.ErrKilled) && killed {
							t.Fatalf("a process that was killed says %v", err)
						}
						h.StartProcess()
						if c.next != nil {
							apply(t, h, c.next())
							converged(t, h, c.next())
						}
						if c.next != nil || !slices.Equal(before, h.Tree()) {
							reset(t, h, before)
						}
						if diff := cmp.Diff(before, h.Tree()); diff != "" {
							t.Errorf("the machine is not as before the first apply (-before +after):\n%s", diff)
						}
					})
				}
			}
		})
	}
}

package reconciler_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

func packages(names ...string) provision.Target {
	var list []provision.PackageVersion
	for _, name := range names {
		list = append(list, provision.PackageVersion{Name: name})
	}
	return provision.Target{Tasks: []provision.Task{tasks.Packages{Install: list}}}
}

func version(t *testing.T, h *provisiontest.Host, name string) string {
	t.Helper()
	installed, err := h.Packages().Installed(t.Context(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	return installed[name]
}

// TestUpdatesOfPackagesStay: the distribution updates a package that was there before the first apply. No way back takes
// the update away, whether or not the old version can still be had.
func TestUpdatesOfPackagesStay(t *testing.T) {
	for _, offered := range []string{"1", "2"} { // by the repository
		for verb, back := range map[string]func(t *testing.T, e *reconciler.Reconciler) (*reconciler.Outcome, error){
			"reset": func(t *testing.T, e *reconciler.Reconciler) (*reconciler.Outcome, error) {
				b, err := e.PlanReset(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return e.Reset(t.Context(), b, reconciler.BackOptions{})
			},
			"prune": func(t *testing.T, e *reconciler.Reconciler) (*reconciler.Outcome, error) {
				b, err := e.PlanPrune(t.Context(), packages("conntrack"))
				if err != nil {
					t.Fatal(err)
				}
				return e.Prune(t.Context(), b, reconciler.BackOptions{})
			},
			"rollback": func(t *testing.T, e *reconciler.Reconciler) (*reconciler.Outcome, error) {
				b, err := e.PlanRollback(t.Context(), 1, packages("kmod"))
				if err != nil {
					t.Fatal(err)
				}
				return e.Rollback(t.Context(), 1, b, reconciler.BackOptions{})
			},
		} {
			t.Run(verb+" with "+offered, func(t *testing.T) {
				h := machine(t)
				h.SetPackageNow("kmod", "1")
				h.Repository["kmod"] = provisiontest.Package{Version: offered}
				apply(t, h, packages("kmod"))
				h.SetPackageNow("kmod", "2")
				apply(t, h, packages("kmod", "conntrack")) // touches both
				out, err := back(t, newReconciler(t, h))
				isKmod := func(l reconciler.Left) bool { return l.Object.Name == "kmod" }
				if err != nil || out.Result != journal.OK || slices.ContainsFunc(out.Left, isKmod) {
					t.Errorf("%+v, %v", out, err)
				}
				if got := version(t, h, "kmod"); got != "2" {
					t.Errorf("version %s is installed, want the update", got)
				}
			})
		}
	}
}

// TestVersionOfAPackageGoesBack: a version that an apply installed in the place of another goes with it, unless the other
// cannot be had any more: then the rest of the reset goes on.
func TestVersionOfAPackageGoesBack(t *testing.T) {
	for offered, want := range map[string]string{"1": "1", "2": "2"} {
		t.Run("with "+offered, func(t *testing.T) {
			h := machine(t)
			h.SetPackageNow("p", "1")
			h.Repository["p"] = provisiontest.Package{Version: "2"}
			apply(t, h, provision.Target{Tasks: []provision.Task{
				tasks.Packages{Install: []provision.PackageVersion{{Name: "p", Version: "2"}}}, tasks.File{Path: "/etc/x", Content: "x"},
			}})
			h.Repository["p"] = provisiontest.Package{Version: offered}
			e := newReconciler(t, h)
			b, err := e.PlanReset(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			out, err := e.Reset(t.Context(), b, reconciler.BackOptions{})
			if err != nil || out.Result != journal.OK || (len(out.Left) > 0) != (offered == "2") || provision.Exists(h.Files(), "/etc/x") {
				t.Errorf("%+v, %v", out, err)
			}
			if got := version(t, h, "p"); got != want {
				t.Errorf("version %s is installed, want %s", got, want)
			}
		})
	}
}

// TestVersionsGoBackTogether: a package goes back with the one that came along in its version. Others that came along keep
// theirs, and one whose old version is in no list does not keep the two.
func TestVersionsGoBackTogether(t *testing.T) {
	h := machine(t)
	offer := func(version string) {
		for _, name := range []string{"foo", "libfoo", "gone", "tool", "libtool"} {
			h.Repository[name] = provisiontest.Package{Version: version}
		}
		h.Repository["foo"] = provisiontest.Package{Version: version, Needs: []string{"libfoo"}, Exact: true}
		h.Repository["tool"] = provisiontest.Package{Version: version, Needs: []string{"libtool"}, Exact: true}
	}
	offer("2")
	for _, name := range []string{"foo", "libfoo", "gone", "libtool"} { // but no tool
		h.SetPackageNow(name, "1")
	}
	apply(t, h, provision.Target{Tasks: []provision.Task{
		tasks.Packages{Install: []provision.PackageVersion{{Name: "foo", Version: "2"}, {Name: "gone", Version: "2"}}},
		tasks.Packages{Install: []provision.PackageVersion{{Name: "tool"}}},
	}})
	offer("1")
	h.Repository["gone"] = provisiontest.Package{Version: "2"}
	e := newReconciler(t, h)
	b, err := e.PlanReset(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Reset(t.Context(), b, reconciler.BackOptions{})
	if err != nil || len(out.Left) != 1 || out.Left[0].Object.Name != "gone" {
		t.Errorf("%+v, %v", out, err)
	}
	for name, want := range map[string]string{"foo": "1", "libfoo": "1", "gone": "2", "tool": "", "libtool": "2"} {
		if got := version(t, h, name); got != want {
			t.Errorf("version %q of %s is installed, want %q", got, name, want)
		}
	}
}

// TestVersionOfAKilledApply: a version goes back also if the apply that installed it was killed before it recorded that, whether
// or not another apply has continued it.
func TestVersionOfAKilledApply(t *testing.T) {
	for _, again := range []bool{false, true} {
		h := machine(t)
		h.SetPackageNow("p", "1")
		h.Repository["p"] = provisiontest.Package{Version: "2"}
		target := provision.Target{Tasks: []provision.Task{tasks.Packages{Install: []provision.PackageVersion{{Name: "p", Version: "2"}}}}}
		h.Fault = func(_ int, op string) provisiontest.Fault {
			if op == "install p" {
				return provisiontest.KillAfter
			}
			return provisiontest.None
		}
		if _, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{}); !errors.Is(err, provisiontest.ErrKilled) {
			t.Fatalf("apply: %v", err)
		}
		h.StartProcess()
		if again {
			if _, err := newReconciler(t, h).Apply(t.Context(), brokenTarget(h), reconciler.ApplyOptions{}); err == nil {
				t.Fatal("want an error for a unit that does not start")
			}
			apply(t, h, target)
		}
		h.Repository["p"] = provisiontest.Package{Version: "1"}
		e := newReconciler(t, h)
		b, err := e.PlanReset(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Reset(t.Context(), b, reconciler.BackOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := version(t, h, "p"); got != "1" {
			t.Errorf("continued %t: version %s is installed, want 1", again, got)
		}
	}
}

// TestPackagesThatComeAlong: packages that came along with others stay wanted when the list of packages grows. When it
// shrinks, prune removes them, or keeps for good what another package needs.
func TestPackagesThatComeAlong(t *testing.T) {
	h := machine(t)
	h.Repository["kmod"], h.Repository["rtd-data"] = provisiontest.Package{Version: "1"}, provisiontest.Package{Version: "1"}
	h.Repository["rtd"] = provisiontest.Package{Version: "1", Needs: []string{"rtd-data"}}
	h.Repository["socat"] = provisiontest.Package{Version: "1", Needs: []string{"libnet"}}
	unwanted := func(target provision.Target, want ...string) {
		t.Helper()
		plan, err := newReconciler(t, h).Plan(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range plan.Unwanted {
			got = append(got, o.Object.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("unwanted are %v, want %v", got, want)
		}
	}
	apply(t, h, packages("conntrack"))
	more := packages("conntrack", "rtd", "socat")
	apply(t, h, more)
	unwanted(more)

	fewer := packages("socat")
	apply(t, h, fewer)
	unwanted(fewer, "conntrack", "libnet", "rtd", "rtd-data")
	e := newReconciler(t, h)
	b, err := e.PlanPrune(t.Context(), fewer)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Prune(t.Context(), b, reconciler.BackOptions{})
	if err != nil || len(out.Left) != 1 || out.Left[0].Object.Name != "libnet" {
		t.Errorf("prune: %+v, %v", out, err)
	}
	unwanted(fewer)
	apply(t, h, packages("socat", "kmod"))
	unwanted(packages("socat", "kmod"))
}

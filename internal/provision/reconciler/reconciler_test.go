package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// machine is a host with what a node may have: packages, an asset, another program's daemon.json,
// swap, and an earlier runtime.
func machine(t *testing.T) *provisiontest.Host {
	t.Helper()
	h := provisiontest.New()
	h.Repository["conntrack"] = provisiontest.Package{Version: "1.4", Needs: []string{"libnet"}, Files: map[string]string{"/usr/bin/conntrack": "ct"}}
	h.Repository["libnet"] = provisiontest.Package{Version: "2"}
	h.Sources["https://example.com/rt.tar"] = map[string]string{"bin/rt": "runtime 2", "bin/rtctl": "client", "doc/README": "text"}
	h.SetSysctlNow("net.ipv4.ip_forward", "0")
	h.SetModule("overlay", provision.ModuleLoaded)
	h.SetModule("br_netfilter", provision.ModuleAvailable)
	h.Programs["hook"] = func(provision.Command) ([]byte, error) { return nil, nil }
	h.Programs["unhook"] = h.Programs["hook"]
	ctx := context.Background()
	files := h.Files()
	write := func(path, content string) {
		if err := files.Write(path, strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := files.Mkdir("/etc/docker", provision.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	write("/etc/docker/daemon.json", "{\n    \"debug\": true, \"mtu\": 1400}")
	write("/etc/fstab", "UUID=1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n")
	write("/usr/bin/rt", "runtime 1")
	write("/swapfile", "x")
	write("/etc/systemd/system/rt.service", "[Service]\nExecStart=/usr/bin/rt old\n")
	if err := h.Kernel().SwapOn(ctx, "/swapfile"); err != nil {
		t.Fatal(err)
	}
	if err := h.Units().Start(ctx, "rt.service"); err != nil {
		t.Fatal(err)
	}
	h.StartProcess()
	return h
}

// fullTarget has a task of every kind.
func fullTarget() provision.Target {
	yes := true
	return provision.Target{Tasks: []provision.Task{
		tasks.Unit{
			M: provision.Meta{Needs: []string{"asset rt", "user rt"}}, Name: "rt.service", Enable: &yes, Running: tasks.Started,
			Content: "[Service]\nExecStart=/usr/bin/rt new\n", DropIns: map[string]string{"10-x.conf": "[Service]\nUser=rt\n"},
		},
		tasks.Packages{Install: []provision.PackageVersion{{Name: "conntrack"}}},
		tasks.Asset{
			M:    provision.Meta{Restarts: []string{"rt.service"}},
			Ref:  provision.AssetRef{Name: "rt", Sources: []string{"https://example.com/rt.tar"}, Digest: "sha256:00"},
			Pick: []tasks.Pick{{What: "binaries", Layouts: [][]string{{"bin/*"}}, Dir: "/usr/bin", Min: 1}},
		},
		tasks.Group{Group: provision.Group{Name: "rt", GID: -1}},
		tasks.User{M: provision.Meta{Needs: []string{"group rt"}}, User: provision.User{Name: "rt", UID: -1, GID: -1}},
		tasks.File{
			M: provision.Meta{Needs: []string{"user rt"}, Restarts: []string{"rt.service"}}, Path: "/etc/rt/conf.d/config.toml",
			Content: "a = 1\n", Owner: "rt",
		},
		tasks.Dir{Path: "/var/lib/rt/data", Mode: 0o700},
		tasks.Data{Path: "/var/lib/images"},
		tasks.Link{Path: "/usr/bin/docker", Target: "rtctl"},
		tasks.JSONKeys{Path: "/etc/docker/daemon.json", Set: map[string]any{"mtu": 1500, "exec-opts": []string{"a"}}},
		tasks.Sysctls{Path: "/etc/sysctl.d/99-x.conf", Values: []tasks.Sysctl{{Key: "net.ipv4.ip_forward", Value: "1"}, {Key: "no.such", Value: "1", Optional: true}}},
		tasks.Modules{Path: "/etc/modules-load.d/x.conf", Names: []string{"overlay", "br_netfilter", "nosuch"}, Optional: []string{"nosuch"}},
		tasks.Command{Name: "hook", Args: []string{"hook"}, Undo: []string{"unhook"}},
		tasks.Swap{},
	}}
}

func newReconciler(t *testing.T, h *provisiontest.Host) *reconciler.Reconciler {
	t.Helper()
	e, err := reconciler.New(reconciler.Config{
		Host: h, Kinds: tasks.Kinds(), Version: "test",
		Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func apply(t *testing.T, h *provisiontest.Host, target provision.Target) *reconciler.Outcome {
	t.Helper()
	out, err := newReconciler(t, h).Apply(t.Context(), target, reconciler.ApplyOptions{})
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	return out
}

// converged fails unless the machine matches the target.
func converged(t *testing.T, h *provisiontest.Host, target provision.Target) {
	t.Helper()
	plan, err := newReconciler(t, h).Plan(t.Context(), target)
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	if !plan.Empty() {
		t.Errorf("after apply there is still to do: %+v", plan)
	}
}

// reset resets the machine and compares it with its earlier state.
func reset(t *testing.T, h *provisiontest.Host, before []string) {
	t.Helper()
	e := newReconciler(t, h)
	b, err := e.PlanReset(t.Context())
	if err != nil {
		t.Fatalf("plan of reset: %v", err)
	}
	out, err := e.Reset(t.Context(), b, reconciler.BackOptions{})
	if err != nil {
		t.Fatalf("reset: %v", err)
	}
	if len(out.Left) > 0 {
		t.Errorf("reset left %v", out.Left)
	}
	if diff := cmp.Diff(before, h.Tree()); diff != "" {
		t.Errorf("reset leaves the machine different (-before +after):\n%s", diff)
	}
}

func TestApplyTwiceAndReset(t *testing.T) {
	h := machine(t)
	before := h.Tree()
	out := apply(t, h, fullTarget())
	if out.Number != 1 || len(out.Changed) != len(fullTarget().Tasks)-1 { // data is never changed
		t.Errorf("outcome %+v, want entry 1 and every task changed", out)
	}
	if err := h.Files().Mkdir("/var/lib/images", provision.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := h.Files().Mkdir("/var/lib/images/layers", provision.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	h.AddMount(provision.Mount{Path: "/var/lib/images", Self: true})
	if got := h.Restarts("rt.service"); got != 1 {
		t.Errorf("rt.service was restarted %d times, want once for binary, config and unit file", got)
	}
	converged(t, h, fullTarget())
	ops := len(h.Ops())
	if out := apply(t, h, fullTarget()); out.Number != 0 || len(h.Ops()) != ops {
		t.Errorf("a second apply did something: %+v %v", out, h.Ops()[ops:])
	}
	reset(t, h, before)
}

// TestKilledAnywhere kills the process before, during and after every operation that changes the
// machine. The next apply completes the changes and the required restarts. A reset leaves the
// machine as before the first apply.
func TestKilledAnywhere(t *testing.T) {
	h := machine(t)
	before := h.Tree()
	apply(t, h, fullTarget())
	total := len(h.Ops())
	want := h.Tree(reconciler.StateDir)
	for _, fault := range []provisiontest.Fault{provisiontest.KillBefore, provisiontest.KillIn, provisiontest.KillAfter} {
		for at := 1; at <= total; at++ {
			t.Run(fmt.Sprintf("%d/%d", fault, at), func(t *testing.T) {
				t.Parallel()
				h := machine(t)
				h.Fault = func(n int, _ string) provisiontest.Fault {
					if n == at {
						return fault
					}
					return provisiontest.None
				}
				_, err := newReconciler(t, h).Apply(t.Context(), fullTarget(), reconciler.ApplyOptions{})
				if err == nil && len(h.Ops()) >= at {
					t.Fatal("a killed apply says that all is well")
				}
				h.StartProcess()
				restarts := h.Restarts("rt.service")
				apply(t, h, fullTarget())
				converged(t, h, fullTarget())
				if restarts+h.Restarts("rt.service") == 0 {
					t.Error("the unit was never restarted")
				}
				if diff := cmp.Diff(want, h.Tree(reconciler.StateDir)); diff != "" {
					t.Errorf("the next apply makes another machine (-want +got):\n%s", diff)
				}
				reset(t, h, before)
			})
		}
	}
}

// TestFullAnywhere makes the disk full for one operation. Apply fails, and leaves the machine as it
// was.
func TestFullAnywhere(t *testing.T) {
	h := machine(t)
	before := h.Tree(reconciler.StateDir, "/var/lib/berth")
	clean := h.Tree()
	apply(t, h, fullTarget())
	total := len(h.Ops())
	for at := 1; at <= total; at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			h := machine(t)
			h.Fault = func(n int, _ string) provisiontest.Fault {
				if n == at {
					return provisiontest.Full
				}
				return provisiontest.None
			}
			_, err := newReconciler(t, h).Apply(t.Context(), fullTarget(), reconciler.ApplyOptions{})
			if err == nil {
				// Tasks run in parallel, so this run had fewer operations.
				if n := len(h.Ops()); n >= at {
					t.Errorf("operation %d of %d failed, and nobody says so", at, n)
				}
				return
			}
			if !errors.Is(err, errs.Exhausted) {
				t.Errorf("error %v does not say that the disk is full", err)
			}
			if strings.Contains(err.Error(), "the machine is as wanted") {
				converged(t, h, fullTarget())
			} else if diff := cmp.Diff(before, h.Tree(reconciler.StateDir, "/var/lib/berth")); diff != "" {
				t.Errorf("a failed apply leaves the machine different (-before +after):\n%s", diff)
			}
			apply(t, h, fullTarget())
			converged(t, h, fullTarget())
			reset(t, h, clean)
		})
	}
}

func TestDriftIsFoundAndRepaired(t *testing.T) {
	h := machine(t)
	ctx := t.Context()
	if err := h.Files().Write("/etc/systemd/system/tool.service", strings.NewReader("[Service]\n"), provision.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	there := true // created by rules.service
	h.Programs["ruled"] = func(provision.Command) ([]byte, error) {
		if there || h.Restarts("rules.service") > 0 {
			return nil, nil
		}
		return nil, errors.New("no rules")
	}
	yes := true
	wanted := func() provision.Target {
		target := fullTarget()
		target.Tasks = append(target.Tasks,
			tasks.Unit{Name: "tool.service", Enable: &yes, Running: tasks.Started},
			tasks.Unit{Name: "rules.service", Content: "[Service]\n", Enable: &yes, Running: tasks.Started, Made: []string{"ruled"}},
			tasks.User{M: provision.Meta{Needs: []string{"group rt"}}, User: provision.User{
				Name: "dev", UID: 2000, GID: 2000, Shell: "/bin/sh", Groups: []string{"rt"},
			}})
		return target
	}
	apply(t, h, wanted())
	for _, c := range []struct {
		object string
		spoil  func() error
	}{
		{"file /etc/rt/conf.d/config.toml", func() error { return h.Files().Remove("/etc/rt/conf.d/config.toml") }},
		{"file /usr/bin/rt", func() error { return h.Files().SetAttr("/usr/bin/rt", provision.Attr{Mode: 0o600}) }},
		{"file /usr/bin/rtctl", func() error { return h.Files().Link("/bin/true", "/usr/bin/rtctl", provision.Attr{}) }},
		{"file /usr/bin/docker", func() error { return h.Files().Link("podman", "/usr/bin/docker", provision.Attr{}) }},
		{"dir /var/lib/rt/data", func() error { return h.Files().Remove("/var/lib/rt/data") }},
		{"json-key /etc/docker/daemon.json#mtu", func() error {
			return h.Files().Write("/etc/docker/daemon.json", strings.NewReader(`{"exec-opts":["a"]}`), provision.Attr{Mode: 0o644})
		}},
		{"unit rt.service", func() error { return h.Units().Stop(ctx, "rt.service") }},
		{"unit rt.service", func() error { return h.Units().Disable(ctx, "rt.service") }},
		{"sysctl net.ipv4.ip_forward", func() error { return h.Kernel().SetSysctl("net.ipv4.ip_forward", "0") }},
		{"module br_netfilter", func() error { return h.Kernel().UnloadModule(ctx, "br_netfilter") }},
		{"package conntrack", func() error { return h.Packages().Remove(ctx, []string{"conntrack"}) }},
		{"file /etc/rt/conf.d/config.toml", func() error {
			return h.Files().SetAttr("/etc/rt/conf.d/config.toml", provision.Attr{Mode: 0o644, UID: 4711})
		}},
		{"file /etc/systemd/system/rt.service", func() error {
			return h.Files().Link("/dev/null", "/etc/systemd/system/rt.service", provision.Attr{})
		}},
		{"unit tool.service", func() error {
			return errors.Join(h.Units().Stop(ctx, "tool.service"), h.Units().Mask(ctx, "tool.service"))
		}},
		{"unit rules.service", func() error { there = false; return nil }},
		{"dir /var/lib/rt/data", func() error { return h.Files().SetAttr("/var/lib/rt/data", provision.Attr{Mode: 0o777}) }},
		{"user dev", func() error {
			return h.Accounts().SetUser(ctx, provision.User{Name: "dev", UID: 2000, GID: 2000, Shell: "/bin/sh"})
		}},
		{"user dev", func() error {
			return h.Accounts().SetUser(ctx, provision.User{Name: "dev", UID: 2000, GID: 2000, Shell: "/bin/false", Groups: []string{"rt"}})
		}},
		{"user rt", func() error { return h.Accounts().RemoveUser(ctx, "rt") }},
		{"group rt", func() error { return h.Accounts().RemoveGroup(ctx, "rt") }},
		{"swap all", func() error { return h.Kernel().SwapOn(ctx, "/swapfile") }},
	} {
		t.Run(c.object, func(t *testing.T) {
			if err := c.spoil(); err != nil {
				t.Fatal(err)
			}
			plan, err := newReconciler(t, h).Plan(t.Context(), wanted())
			if err != nil {
				t.Fatal(err)
			}
			var named []string
			for _, s := range plan.Steps {
				for _, d := range s.Diffs {
					named = append(named, d.Object.String())
				}
			}
			if !slices.Contains(named, c.object) {
				t.Errorf("drift of %s is not found, only %v", c.object, named)
			}
			apply(t, h, wanted())
			converged(t, h, wanted())
		})
	}
}

func TestPruneRollbackHistory(t *testing.T) {
	h := machine(t)
	apply(t, h, fullTarget())
	first := h.Tree(reconciler.StateDir)

	// The second target lacks some tasks and has others.
	second := fullTarget()
	second.Tasks = slices.DeleteFunc(second.Tasks, func(task provision.Task) bool {
		return slices.Contains([]string{"link /usr/bin/docker", "command hook", "packages conntrack", "dir /var/lib/rt/data"}, task.ID())
	})
	second.Tasks = append(second.Tasks, tasks.File{Path: "/etc/new/file", Content: "x"})
	apply(t, h, second)
	e := newReconciler(t, h)
	b, err := e.PlanPrune(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Prune(t.Context(), b, reconciler.BackOptions{})
	if err != nil || len(out.Left) > 0 {
		t.Fatalf("prune: %+v %v", out, err)
	}
	tree := strings.Join(h.Tree(reconciler.StateDir), "\n")
	for _, gone := range []string{"/usr/bin/docker ", "package conntrack", "package libnet", "/var/lib/rt"} {
		if strings.Contains(tree, gone) {
			t.Errorf("%q is still there after prune", gone)
		}
	}
	converged(t, h, second)

	e = newReconciler(t, h)
	if b, err = e.PlanRollback(t.Context(), 1, fullTarget()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Rollback(t.Context(), 1, b, reconciler.BackOptions{}); err != nil {
		t.Fatalf("rollback: %v", err)
	}
	// A rollback does not run a hook again that was undone, because a hook is not part of the
	// state.
	noHook := func(tree []string) []string {
		return slices.DeleteFunc(tree, func(line string) bool { return strings.Contains(line, "/commands") })
	}
	if diff := cmp.Diff(noHook(first), noHook(h.Tree(reconciler.StateDir))); diff != "" {
		t.Errorf("rollback to 1 makes another machine (-want +got):\n%s", diff)
	}
	var verbs []string
	for _, entry := range e.Journal().History() {
		verbs = append(verbs, string(entry.Verb)+" "+string(entry.Result))
	}
	if want := []string{"apply ok", "apply ok", "prune ok", "rollback ok"}; !slices.Equal(verbs, want) {
		t.Errorf("history %v, want %v", verbs, want)
	}
	plan, err := newReconciler(t, h).Plan(t.Context(), fullTarget())
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range plan.Steps {
		if step.Task != "command hook" {
			t.Errorf("after the rollback %s differs from the first target: %+v", step.Task, step.Diffs)
		}
	}
}

func TestBadTargets(t *testing.T) {
	file := func(path string, needs ...string) provision.Task {
		return tasks.File{M: provision.Meta{Needs: needs}, Path: path}
	}
	for _, c := range []struct {
		name  string
		tasks []provision.Task
		want  string
	}{
		{"twice", []provision.Task{file("/etc/a"), file("/etc/a")}, `two tasks are called "file /etc/a"`},
		{"unknown need", []provision.Task{file("/etc/a", "file /etc/b")}, `needs "file /etc/b", which there is not`},
		{"cycle", []provision.Task{file("/etc/a", "file /etc/b"), file("/etc/b", "file /etc/a")}, "file /etc/a → file /etc/b → file /etc/a"},
		{"two owners", []provision.Task{file("/etc/a"), tasks.Link{Path: "/etc/a", Target: "b"}}, "both want file /etc/a"},
		{"path", []provision.Task{file("etc/../a")}, "not absolute and clean"},
		{"newline", []provision.Task{file("/etc/a\nb")}, "newline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t)
			_, err := newReconciler(t, h).Apply(t.Context(), provision.Target{Tasks: c.tasks}, reconciler.ApplyOptions{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if ops := h.Ops(); len(ops) > 0 {
				t.Errorf("a bad target changed the machine: %v", ops)
			}
		})
	}
}

// TestWhatAPackageBringsGoesWithIt: the unit and the file that a package installs did not exist
// before, so reset removes them, whichever task changed them since.
func TestWhatAPackageBringsGoesWithIt(t *testing.T) {
	h := withRtd(t)
	// One package needs the other, and the target does not order them. Package lists are fetched
	// first.
	h.Repository["librt"] = provisiontest.Package{Version: "1"}
	h.Repository["rtd-data"] = provisiontest.Package{Version: "1", Needs: []string{"librt"}}
	h.StaleLists = true
	before := h.Tree()
	yes := true
	target := provision.Target{Tasks: []provision.Task{
		tasks.Packages{Install: []provision.PackageVersion{{Name: "rtd"}}},
		tasks.File{M: provision.Meta{Needs: []string{"packages rtd"}, Restarts: []string{"rtd.service"}}, Path: "/etc/rtd.conf", Content: "ours"},
		tasks.Unit{
			M: provision.Meta{Needs: []string{"file /etc/rtd.conf"}}, Name: "rtd.service", Enable: &yes, Running: tasks.Started,
			DropIns: map[string]string{"10-x.conf": "[Service]\nUser=rt\n"},
		},
	}}
	apply(t, h, target)
	converged(t, h, target)
	b, err := newReconciler(t, h).PlanReset(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(b.Diffs, func(d provision.Diff) bool { return d.Object.Name == "rtd.service" && d.Stops() }) {
		t.Errorf("the plan of the reset does not say that rtd.service stops: %+v", b.Diffs)
	}
	reset(t, h, before)
}

// withRtd is a machine whose repository has the package of a runtime.
func withRtd(t *testing.T) *provisiontest.Host {
	t.Helper()
	h := machine(t)
	h.Repository["rtd"] = provisiontest.Package{
		Version: "1", Starts: []string{"rtd.service"}, Needs: []string{"rtd-data", "librt"},
		Files: map[string]string{"/usr/lib/systemd/system/rtd.service": "[Service]\n", "/etc/rtd.conf": "as packaged"},
	}
	for _, dir := range []string{"/usr/lib", "/usr/lib/systemd", "/usr/lib/systemd/system"} {
		if err := h.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// TestRollbackToBeforeAHeldObject: a package brings a unit and a file in one entry, and a later entry
// changes them. On the way back to an entry before both, they go with the package.
func TestRollbackToBeforeAHeldObject(t *testing.T) {
	h := withRtd(t)
	h.Repository["librt"], h.Repository["rtd-data"] = provisiontest.Package{Version: "1"}, provisiontest.Package{Version: "1"}
	first := provision.Target{Tasks: []provision.Task{tasks.File{Path: "/etc/new/file", Content: "x"}}}
	apply(t, h, first)
	want := h.Tree(reconciler.StateDir)

	packages := tasks.Packages{Install: []provision.PackageVersion{{Name: "rtd"}}}
	held := provision.Target{Tasks: append(slices.Clone(first.Tasks), packages,
		tasks.Held{Object: provision.Object{Kind: provision.KindUnit, Name: "rtd.service"}},
		tasks.Held{Object: provision.Object{Kind: provision.KindFile, Name: "/etc/rtd.conf"}})}
	apply(t, h, held)
	yes := true
	apply(t, h, provision.Target{Tasks: append(slices.Clone(first.Tasks), packages,
		tasks.File{Path: "/etc/rtd.conf", Content: "ours", M: provision.Meta{Restarts: []string{"rtd.service"}}},
		tasks.Unit{Name: "rtd.service", Enable: &yes, Running: tasks.Started, DropIns: map[string]string{"10-x.conf": "[Service]\nUser=rt\n"}})})

	e := newReconciler(t, h)
	b, err := e.PlanRollback(t.Context(), 1, first)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(b.Diffs, func(d provision.Diff) bool { return d.Object.Name == "rtd.service" && d.Stops() }) {
		t.Errorf("the plan does not say that rtd.service stops: %+v", b.Diffs)
	}
	if _, err := e.Rollback(t.Context(), 1, b, reconciler.BackOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.Tree(reconciler.StateDir)); diff != "" {
		t.Errorf("rollback to 1 makes another machine (-want +got):\n%s", diff)
	}
}

package reconciler_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

func text(t *testing.T, h *provisiontest.Host, path string) string {
	t.Helper()
	r, err := h.Files().Open(path)
	if errors.Is(err, errs.NotFound) {
		return "absent"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestFailedCheckKeepsRepairs: if a unit is not healthy, apply rolls back to the state of the last
// good entry, and not to manual changes since then. Files that the failed unit reads go back to
// what the unit ran with.
func TestFailedCheckKeepsRepairs(t *testing.T) {
	for _, c := range []struct {
		name  string
		level string // a level of a new target
		fails string // the unit that fails
	}{
		{"drift alone", "1", "rt.service"},
		{"with a change", "2", "rt.service"},
		{"another unit", "2", "other.service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t)
			yes := true
			sick := errors.New("no answer")
			target := func(level string, health error) provision.Target {
				target := fullTarget()
				unit := target.Tasks[0].(tasks.Unit)
				unit.M.Needs = append(unit.M.Needs, "file /etc/kept/deep/a", "file /etc/level", "unit tool.service")
				for _, task := range target.Tasks {
					if _, ok := task.(tasks.Sysctls); ok {
						unit.M.Needs = append(unit.M.Needs, task.ID())
					}
				}
				target.Tasks[0] = unit
				target.Tasks = append(target.Tasks,
					tasks.File{Path: "/etc/kept/deep/a", Content: "ours"},
					tasks.File{Path: "/etc/level", Content: level},
					tasks.Unit{Name: "tool.service", Content: "[Service]\n", Enable: &yes, Running: tasks.Started},
					tasks.Unit{M: provision.Meta{Needs: []string{"unit rt.service"}}, Name: "other.service", Content: "[Service]\nUser=" + level + "\n", Enable: &yes, Running: tasks.Started},
				)
				target.Gates = []provision.Gate{{Unit: c.fails, After: []provision.Probe{probe{"health", func() error { return health }}}}}
				return target
			}
			apply(t, h, target("1", nil))
			for _, err := range []error{
				h.Files().RemoveAll("/etc/kept"),
				h.Kernel().SetSysctl("net.ipv4.ip_forward", "0"),
				h.Units().Stop(t.Context(), "tool.service"),
				h.Files().Write("/etc/rt/conf.d/config.toml", strings.NewReader("by hand"), provision.Attr{Mode: 0o644}),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			out, err := newReconciler(t, h).Apply(t.Context(), target(c.level, sick), reconciler.ApplyOptions{})
			if !errors.Is(err, sick) || out.Result != journal.RolledBack || len(out.Left) > 0 {
				t.Fatalf("apply returned %+v, %v; want it undone for its health", out, err)
			}
			config := "by hand" // the failed unit ran with this
			if c.fails != "rt.service" {
				config = "a = 1\n"
			}
			for path, want := range map[string]string{
				"/etc/kept/deep/a": "ours", "/etc/level": "1", "/etc/rt/conf.d/config.toml": config,
			} {
				if got := text(t, h, path); got != want {
					t.Errorf("%s is %q after the undoing, want %q", path, got, want)
				}
			}
			if got, err := h.Kernel().Sysctl("net.ipv4.ip_forward"); got != "1" || err != nil {
				t.Errorf("net.ipv4.ip_forward is %s, %v after the undoing; want it repaired", got, err)
			}
			if state, err := h.Units().State(t.Context(), "tool.service"); state.Active != "active" || err != nil {
				t.Errorf("tool.service is %s, %v after the undoing; want it repaired", state.Active, err)
			}
			if o := (provision.Object{Kind: provision.KindFile, Name: "/etc/kept/deep/a"}); !slices.Contains(out.Repaired, o) {
				t.Errorf("the outcome lists %v as repaired, and not %s", out.Repaired, o)
			}
			// The next apply repairs the rest.
			apply(t, h, target(c.level, nil))
			converged(t, h, target(c.level, nil))
		})
	}
}

// TestKeptRepairIsRestartedFor: a repair that stays gets the restart that it needs, although the
// earlier apply failed.
func TestKeptRepairIsRestartedFor(t *testing.T) {
	h := machine(t)
	bad := false
	h.Programs["last"] = func(provision.Command) ([]byte, error) {
		if bad {
			return nil, errors.New("no luck")
		}
		return nil, nil
	}
	target := func(env string) provision.Target {
		target := fullTarget()
		unit := target.Tasks[0].(tasks.Unit)
		unit.M.Needs = append(unit.M.Needs, "command last")
		target.Tasks[0] = unit
		target.Tasks = append(target.Tasks, tasks.Command{
			M: provision.Meta{Needs: []string{"file /etc/rt/conf.d/config.toml"}}, Name: "last", Args: []string{"last"}, Env: []string{env},
		})
		return target
	}
	apply(t, h, target("A=1"))
	if err := h.Files().Remove("/etc/rt/conf.d/config.toml"); err != nil {
		t.Fatal(err)
	}
	bad = true
	if out, err := newReconciler(t, h).Apply(t.Context(), target("A=2"), reconciler.ApplyOptions{}); err == nil || out.Result != journal.RolledBack {
		t.Fatalf("apply returned %+v, %v; want it undone", out, err)
	}
	if got := text(t, h, "/etc/rt/conf.d/config.toml"); got != "a = 1\n" {
		t.Errorf("the configuration is %q, want it repaired", got)
	}
	bad = false
	restarts := h.Restarts("rt.service")
	apply(t, h, target("A=1"))
	if got := h.Restarts("rt.service") - restarts; got != 1 {
		t.Errorf("rt.service was restarted %d times for its repaired configuration, want once", got)
	}
}

// TestResetRemovesADirectoryThatIsAMountOfItself: a runtime bind-mounts the directory of its
// network namespaces on itself.
func TestResetRemovesADirectoryThatIsAMountOfItself(t *testing.T) {
	h := machine(t)
	before := h.Tree()
	target := provision.Target{Tasks: []provision.Task{
		tasks.Held{Object: provision.Object{Kind: provision.KindDir, Name: "/run/netns"}}, tasks.File{Path: "/etc/a", Content: "a"},
	}}
	apply(t, h, target)
	if err := h.Files().Mkdir("/run/netns", provision.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	h.AddMount(provision.Mount{Path: "/run/netns", Self: true})
	reset(t, h, before)
}

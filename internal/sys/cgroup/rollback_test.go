package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"
)

// halfway writes some files into its directory, and then fails.
type halfway struct {
	dir    string
	writes map[string]string
	err    error
	then   func()
	sets   []*cgroups.Resources
}

func (h *halfway) Set(res *cgroups.Resources) error {
	h.sets = append(h.sets, res)
	if len(h.sets) > 1 {
		return nil
	}
	for name, text := range h.writes {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if h.then != nil {
		h.then()
	}
	return h.err
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[entry.Name()] = string(data)
	}
	return all
}

// TestLimitsAreChangedAllOrNone: a failure in the middle, or a request that ended meanwhile, leaves
// every limit as it was. The error reports it.
func TestLimitsAreChangedAllOrNone(t *testing.T) {
	before := map[string]string{"memory.max": "max\n", "cpu.max": "max 100000\n", "cpuset.cpus": "", "memory.high": "max\n", "pids.max": "7\n"}
	res := &cgroups.Resources{Unified: map[string]string{"memory.high": "5"}}
	refused := errors.New("the kernel refuses")
	for name, err := range map[string]error{"fails": refused, "ends": nil} {
		ctx, cancel := context.WithCancel(t.Context())
		dir := t.TempDir()
		write(t, dir, before)
		g := &halfway{dir: dir, err: err, then: cancel, writes: map[string]string{"memory.max": "5", "cpuset.cpus": "0", "memory.high": "5"}}
		paths := Paths{"": dir}
		got := change(ctx, g, filesOf(paths, res), false, res)
		if want := err; want == nil && !errors.Is(got, context.Canceled) || want != nil && !errors.Is(got, want) {
			t.Errorf("%s: %v", name, got)
		}
		if !strings.Contains(got.Error(), "as they were") {
			t.Errorf("%s: %v, want that it says what holds", name, got)
		}
		after := contents(t, dir)
		if after["cpuset.cpus"] == "\n" {
			after["cpuset.cpus"] = "" // the kernel treats both alike
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s: (-before +after):\n%s", name, diff)
		}
		cancel()
		if err := change(ctx, g, filesOf(paths, res), false, res); !errors.Is(err, context.Canceled) || len(g.sets) != 1 {
			t.Errorf("%s: a request that has ended: %v after %d writes", name, err, len(g.sets)-1)
		}
	}
}

// TestLimitsThatCannotBeRestored: the error names the file.
func TestLimitsThatCannotBeRestored(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"memory.max": "max\n"})
	g := &halfway{dir: dir, err: errors.New("the kernel refuses"), then: func() {
		if err := errors.Join(os.Remove(filepath.Join(dir, "memory.max")), os.Mkdir(filepath.Join(dir, "memory.max"), 0o700)); err != nil {
			t.Fatal(err)
		}
	}}
	err := change(t.Context(), g, filesOf(Paths{"": dir}, &cgroups.Resources{}), false, &cgroups.Resources{})
	if err == nil || !strings.Contains(err.Error(), "memory.max") || strings.Contains(err.Error(), "as they were") {
		t.Errorf("%v, want that it names memory.max", err)
	}
}

// TestRollbackReachesSystemd: systemd gets the previous limits too. Otherwise it would write the
// failed ones again.
func TestRollbackReachesSystemd(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	write(t, v1, map[string]string{"memory.limit_in_bytes": "9223372036854771712\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n", "cpu.shares": "1024\n"})
	write(t, v2, map[string]string{"memory.max": "max\n", "cpuset.cpus": "", "cpu.weight": "100\n"})
	for dir, test := range map[string]struct {
		paths  Paths
		writes map[string]string
		want   *cgroups.Resources
	}{
		v1: {
			Paths{"memory": v1, "cpu": v1},
			map[string]string{"memory.limit_in_bytes": "1\n", "cpu.cfs_quota_us": "2\n", "cpu.cfs_period_us": "3\n", "cpu.shares": "4\n"},
			&cgroups.Resources{Memory: -1, CpuQuota: -1, CpuPeriod: 100000, CpuShares: 1024, SkipDevices: true, SkipFreezeOnSet: true},
		},
		v2: {
			Paths{"": v2},
			map[string]string{"memory.max": "1\n", "cpuset.cpus": "0\n"},
			&cgroups.Resources{Unified: map[string]string{"memory.max": "max"}, SkipDevices: true, SkipFreezeOnSet: true},
		},
	} {
		g := &halfway{dir: dir, err: errors.New("the kernel refuses"), writes: test.writes}
		if err := change(t.Context(), g, filesOf(test.paths, &cgroups.Resources{}), true, &cgroups.Resources{}); err == nil {
			t.Fatal("no error")
		}
		if len(g.sets) != 2 {
			t.Fatalf("systemd was set %d times", len(g.sets))
		}
		if diff := cmp.Diff(test.want, g.sets[1]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

//go:build integration

package cgroup_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestParentOfHelpers: the parent goes with the last helper, except a slice, whose limits are systemd's.
func TestParentOfHelpers(t *testing.T) {
	require.Root(t)
	name := fmt.Sprintf("/berthtest%d", os.Getpid())
	for parent, stays := range map[string]bool{name: false, name + ".slice": true} {
		groups, err := cgroup.NewHelperGroups(parent, "a")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(groups.Dir()) })
		group, err := groups.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(group.Procs()); err != nil {
			t.Error(err)
		}
		if used, err := group.Used(); err != nil || used > 1<<20 {
			t.Errorf("without a process it uses %d bytes, %v", used, err)
		}
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
		groups.Close()
		if _, err := os.Stat(groups.Dir()); errors.Is(err, fs.ErrNotExist) == stays {
			t.Errorf("%s after the end: %v", parent, err)
		}
	}
}

// newHelperGroups makes a parent for a test.
func newHelperGroups(t *testing.T) *cgroup.HelperGroups {
	t.Helper()
	require.Root(t)
	groups, err := cgroup.NewHelperGroups(fmt.Sprintf("/berthtest%d-%s", os.Getpid(), t.Name()), "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(groups.Close)
	return groups
}

// TestSweepKillsHelpers: a helper that has outlived its daemon ends with the sweep of the next one. Helpers of others do not.
func TestSweepKillsHelpers(t *testing.T) {
	groups := newHelperGroups(t)
	other, err := cgroup.NewHelperGroups(filepath.Base(groups.Dir()), "b")
	if err != nil {
		t.Fatal(err)
	}
	var helpers []*exec.Cmd
	for _, groups := range []*cgroup.HelperGroups{groups, other} {
		group, err := groups.New(16 << 20)
		if err != nil {
			t.Fatal(err)
		}
		helper := exec.CommandContext(t.Context(), "sleep", "60")
		if err := helper.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = helper.Process.Kill()
			_ = helper.Wait()
			if err := group.Remove(); err != nil {
				t.Error(err)
			}
		})
		if err := os.WriteFile(group.Procs(), []byte(strconv.Itoa(helper.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
		helpers = append(helpers, helper)
	}
	if err := groups.Sweep(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(groups.Dir(), "a-*")); len(left) > 0 {
		t.Errorf("the sweep leaves %v", left)
	}
	if err := helpers[0].Wait(); helpers[0].ProcessState.ExitCode() != -1 {
		t.Errorf("the helper was not killed: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(groups.Dir(), "b-*")); err != nil || len(left) != 1 {
		t.Errorf("the cgroups of another prefix: %v, %v", left, err)
	}
}

// TestParentThatAnotherInstanceRemoves: instances share the parent cgroup, and each removes it when it ends.
func TestParentThatAnotherInstanceRemoves(t *testing.T) {
	groups := newHelperGroups(t)
	other, err := cgroup.NewHelperGroups(filepath.Base(groups.Dir()), "b")
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	if _, err := os.Stat(groups.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the parent is still there: %v", err)
	}
	if err := groups.Sweep(); err != nil {
		t.Error(err)
	}
	group, err := groups.New(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Remove(); err != nil {
		t.Error(err)
	}
}

// TestRenewedGroupsHaveTheirLimits: the next helper in a cgroup has the limits of the first one, whatever that has done to them.
func TestRenewedGroupsHaveTheirLimits(t *testing.T) {
	groups := newHelperGroups(t)
	group, err := groups.New(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Dir(group.Procs())
	files, _ := filepath.Glob(filepath.Join(dir, "memory.max"))
	if len(files) == 0 {
		files = []string{filepath.Join(dir, "memory.memsw.limit_in_bytes"), filepath.Join(dir, "memory.limit_in_bytes")}
	}
	for _, file := range files {
		if err := os.WriteFile(file, []byte("64M"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			t.Fatal(err)
		}
	}
	if err := group.Renew(); err != nil {
		t.Error(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if got := strings.TrimSpace(string(data)); got != strconv.Itoa(16<<20) && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is %s, %v", file, got, err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "child"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := group.Renew(); !errors.Is(err, errs.State) {
		t.Errorf("a cgroup with a child is used again: %v", err)
	}
}

// TestHelpersHaveFewTasks: a cgroup bounds the processes of its helper.
func TestHelpersHaveFewTasks(t *testing.T) {
	require.CgroupV2(t)
	groups := newHelperGroups(t)
	group, err := groups.New(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	if data, err := os.ReadFile(filepath.Join(filepath.Dir(group.Procs()), "pids.max")); err != nil || strings.TrimSpace(string(data)) != "1024" {
		t.Errorf("pids.max is %q, %v", data, err)
	}
}

//go:build integration

package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestRejoin: processes that were moved into the cgroup above that of their container, in one hierarchy,
// come back. Those of others stay where they are.
func TestRejoin(t *testing.T) {
	require.Root(t)
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("%064d", os.Getpid())
	slice := fmt.Sprintf("/berth-rejoin%d", os.Getpid())
	scope := slice + "/docker-" + id + ".scope"
	process := exec.Command("sleep", "100000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	pid := process.Process.Pid
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if err := tree.Paths(slice).Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if _, err := tree.Rejoin(pid, id); !errors.Is(err, errs.NotFound) {
		t.Errorf("before it is in the cgroup: %v", err)
	}
	if err := tree.Make(scope); err != nil {
		t.Fatal(err)
	}
	put := func(hierarchy, path string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tree.Paths(path)[hierarchy], "cgroup.procs"), fmt.Append(nil, pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	if tree.V2 { // one hierarchy
		put("", scope)
		if moved, err := tree.Rejoin(pid, id); moved || err != nil {
			t.Errorf("on cgroup v2: %v, %v", moved, err)
		}
		return
	}
	put("freezer", scope)
	if moved, err := tree.Rejoin(pid, id); moved || err != nil {
		t.Errorf("a process in the root of the other hierarchies, as a zombie shows: %v, %v", moved, err)
	}
	put("pids", scope)
	put("devices", slice)
	if moved, err := tree.Rejoin(pid, id); !moved || err != nil {
		t.Errorf("a process in the cgroup above: %v, %v", moved, err)
	}
	own, err := tree.OfContainer(pid, id)
	if want := tree.Paths(scope); err != nil || len(own) != 3 || own["devices"] != want["devices"] || own["freezer"] != want["freezer"] || own["pids"] != want["pids"] {
		t.Errorf("it is in %v, %v; want devices, freezer and pids of %s", own, err, scope)
	}
	if moved, err := tree.Rejoin(pid, id); moved || err != nil {
		t.Errorf("a process that is in its cgroup: %v, %v", moved, err)
	}
}

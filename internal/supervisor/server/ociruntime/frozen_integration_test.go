//go:build integration

package ociruntime

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestFrozenCgroupHoldsOnlyTheChild: a container that freezes the cgroup of an exec does not stop the supervisor, which
// waits in no system call for the child.
func TestFrozenCgroupHoldsOnlyTheChild(t *testing.T) {
	require.Root(t)
	dir := frozenCgroup(t)
	entrance, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer entrance.Close()
	parts, err := staticParts(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	child, err := parts.program.Start(&fork.Request{
		Role: order.RoleExec, Cgroup: entrance, Stdio: [3]*os.File{parts.null.input, parts.null.output, parts.null.output},
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC() // it stops all threads, and would wait for one that waits for the child
	if in, err := cgroup.Paths(map[string]string{"": dir}).Pids(); err != nil || len(in) != 1 || in[0] != child.Pid {
		t.Errorf("in the cgroup are %v, want %d: %v", in, child.Pid, err)
	}
	child.Kill()
}

// frozenCgroup makes a cgroup of v2 and freezes it. Hosts with cgroup v1 have a hierarchy of v2 beside it.
func frozenCgroup(t *testing.T) (dir string) {
	t.Helper()
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	dir = tree.Paths("/" + filepath.Base(t.TempDir()) + "-berth-frozen")[""]
	if dir == "" {
		t.Fatal("this host has no hierarchy of cgroup v2")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

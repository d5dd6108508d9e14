//go:build integration

package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestFrozenCgroupHoldsOnlyTheChild: a container that freezes the cgroup of an exec does not stop the supervisor, which
// waits in no system call for the child. With a user namespace, a process in the cgroup starts the child: that start waits, until
// its caller cancels it.
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
	child, err := parts.program.Start(t.Context(), &fork.Request{
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
	user, err := os.Open("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	_, err = parts.program.Start(ctx, &fork.Request{
		Role: order.RoleExec, User: user, Cgroup: entrance, Stdio: [3]*os.File{parts.null.input, parts.null.output, parts.null.output},
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the start ended with %v", err)
	}
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

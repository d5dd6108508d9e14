//go:build integration

package podcgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestRemoveParentEndsStrays: a process that a runtime has lost runs on in the cgroup of a sandbox
// whose containers have all ended.
func TestRemoveParentEndsStrays(t *testing.T) {
	require.Root(t)
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/berth-stray%d", os.Getpid())
	m := New(Config{Instance: "stray", Driver: Cgroupfs, Prefix: "test", DefaultParent: name}, tree)
	file := filepath.Join(t.TempDir(), "own")
	parent, err := m.MakeParent(t.Context(), "s1", "", file)
	if err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("sleep", "100000")
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	t.Cleanup(func() { _ = stray.Process.Kill() })
	if err := tree.Make(parent + "/c1"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range tree.Paths(parent + "/c1") {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, stray.Process.Pid), 0); err != nil {
			t.Logf("%s: %v", dir, err) // a hierarchy without the cgroup
		}
	}
	if err := m.RemoveParent(t.Context(), "s1", file, false); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the process has ended by itself")
	}
	if tree.Exists(name) {
		t.Errorf("cgroup %s is left", name)
	}
}

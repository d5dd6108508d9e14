//go:build integration

package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

// TestAdmit: a process is moved into a cgroup that did not exist, below another one.
func TestAdmit(t *testing.T) {
	require.Root(t)
	tree, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	top := "/berth-admit-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		if err := tree.Remove(top); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sleep", "1h")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	if in, err := tree.Admitted(top+"/engine", cmd.Process.Pid); err != nil || in {
		t.Errorf("before: admitted %t, %v", in, err)
	}
	for range 2 {
		if err := tree.Admit(top+"/engine", cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if in, err := tree.Admitted(top+"/engine", cmd.Process.Pid); err != nil || !in {
			t.Errorf("after: admitted %t, %v", in, err)
		}
	}
	end()
	if err := tree.Admit(top+"/engine", cmd.Process.Pid); !errors.Is(err, errs.NotFound) {
		t.Errorf("a process that has ended: %v, want NotFound", err)
	}
}

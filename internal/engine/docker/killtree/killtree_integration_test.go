//go:build integration

package killtree

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// newGroup returns a cgroup for one test.
func newGroup(t *testing.T, suffix string) (group cgroup.Paths, name string) {
	t.Helper()
	require.Root(t)
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("berth-killtree-%s%d", suffix, os.Getpid())
	if err := tree.Make("/" + name); err != nil {
		t.Fatal(err)
	}
	group = tree.Paths("/" + name)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(group.Kill(ctx), group.Remove(ctx)); err != nil {
			t.Error(err)
		}
	})
	return group, name
}

// begin starts a shell script in a session of its own and in a cgroup, nil for none. It returns once
// the script has printed a line.
func begin(t *testing.T, group cgroup.Paths, mark, script string) *exec.Cmd {
	t.Helper()
	join := ""
	for _, dir := range group {
		join += "echo $$ 2>/dev/null >" + filepath.Join(dir, "cgroup.procs") + "; "
	}
	cmd := exec.Command("sh", "-c", join+script)
	cmd.Env = append(os.Environ(), mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the script has said %q: %v", line, err)
	}
	return cmd
}

// running returns the processes of a cgroup that have not ended.
func running(t *testing.T, group cgroup.Paths) []int {
	t.Helper()
	pids, err := group.Pids()
	if err != nil {
		t.Fatal(err)
	}
	var left []int
	for _, pid := range pids {
		if proc, err := sysproc.ReadProc(pid); err == nil && !proc.Zombie() {
			left = append(left, pid)
		}
	}
	return left
}

// TestKill: a command is killed with its children, with what is in another session, and with what
// runs on after it has ended. Other processes of the container run on.
func TestKill(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		ended  bool
	}{
		"it runs":      {"setsid sleep 100000 >/dev/null & (sleep 100000 >/dev/null &); echo begun; sleep 100000", false},
		"it has ended": {"setsid sleep 100000 >/dev/null & sleep 100000 >/dev/null & echo begun", true},
	} {
		t.Run(name, func(t *testing.T) {
			group, _ := newGroup(t, "kill")
			other := begin(t, group, "BERTH_MARK=other", "echo begun; exec sleep 100000 >/dev/null")
			mark := "BERTH_MARK=" + strings.ReplaceAll(name, " ", "-")
			cmd := begin(t, group, mark, c.script)
			pid := cmd.Process.Pid
			if c.ended {
				if err := cmd.Wait(); err != nil {
					t.Fatal(err)
				}
				pid = 0
			}
			if err := Kill(t.Context(), mark, pid, group); err != nil {
				t.Error(err)
			}
			if left := running(t, group); len(left) != 1 || left[0] != other.Process.Pid {
				t.Errorf("the processes %v run on, want %d", left, other.Process.Pid)
			}
		})
	}
}

// TestKillSparesTheOutside: a process of the command's that is not in the container runs on.
func TestKillSparesTheOutside(t *testing.T) {
	group, _ := newGroup(t, "outside")
	const mark = "BERTH_MARK=outside"
	outside := begin(t, nil, mark, "echo begun; exec sleep 100000 >/dev/null")
	if err := Kill(t.Context(), mark, outside.Process.Pid, group); err != nil {
		t.Error(err)
	}
	proc, err := sysproc.ReadProc(outside.Process.Pid)
	if err != nil || proc.Zombie() {
		t.Fatalf("it has ended: %v, %v", proc, err)
	}
	// The same for one that leaves between the look at the processes and the signal.
	if err := kill([]sysproc.Proc{proc}, group); err != nil {
		t.Error(err)
	}
	if now, err := sysproc.ReadProc(proc.Pid); err != nil || now.Zombie() {
		t.Errorf("it has ended: %v, %v", now, err)
	}
}

// TestKillSparesANewProcess: a pid that another process has got meanwhile is not signalled.
func TestKillSparesANewProcess(t *testing.T) {
	group, _ := newGroup(t, "reused")
	cmd := begin(t, group, "BERTH_MARK=new", "echo begun; exec sleep 100000 >/dev/null")
	proc, err := sysproc.ReadProc(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	earlier := proc
	earlier.Start--
	if err := kill([]sysproc.Proc{earlier}, group); err != nil {
		t.Error(err)
	}
	if left := running(t, group); len(left) != 1 {
		t.Errorf("the processes %v run on, want one", left)
	}
	if err := kill([]sysproc.Proc{proc}, group); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
}

// TestStrays: what an engine has lost is killed, and the cgroup goes.
func TestStrays(t *testing.T) {
	group, name := newGroup(t, "strays")
	cmd := begin(t, group, "BERTH_MARK=stray", "echo begun; exec sleep 100000 >/dev/null")
	if killed, err := Strays(t.Context(), "other", group); killed || !errors.Is(err, errs.Invalid) {
		t.Errorf("Strays of another container = %v, %v", killed, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if killed, err := Strays(t.Context(), name, group); !killed || err != nil {
		t.Errorf("Strays = %v, %v", killed, err)
	}
	if err := <-ended; err == nil {
		t.Error("it has ended by itself")
	}
	if group.Exist() {
		t.Error("the cgroup is left")
	}
	if killed, err := Strays(t.Context(), name, group); killed || err != nil {
		t.Errorf("Strays without a cgroup = %v, %v", killed, err)
	}
}

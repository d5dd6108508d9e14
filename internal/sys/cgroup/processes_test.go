package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestCheckRefusesForeignPaths(t *testing.T) {
	for _, good := range []Paths{
		{"": "/sys/fs/cgroup/pod/abc"},
		{"": "/sys/fs/cgroup/a.slice/cri-abc.scope"},
		{"memory": "/sys/fs/cgroup/memory/x/abc", "cpu": "/sys/fs/cgroup/cpu/x/abc"},
	} {
		if err := good.Check("abc"); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	for _, bad := range []Paths{
		nil,
		{"": "/sys/fs/cgroup"},
		{"": "/sys/fs/cgroup/abc/pod"},
		{"": "sys/abc"},
		{"": "/sys/fs/cgroup/x/../abc"},
		{"memory": "/sys/fs/cgroup/memory/x/abc", "cpu": "/sys/fs/cgroup/cpu/x"},
	} {
		if err := bad.Check("abc"); !errors.Is(err, errs.Invalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := (Paths{"": "/sys/fs/cgroup/x"}).Check(""); !errors.Is(err, errs.Invalid) {
		t.Errorf("empty id: %v", err)
	}
}

// withProcesses creates directories that look like cgroups with the given processes.
func withProcesses(t *testing.T, procs map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for dir, text := range procs {
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestPidsOfAllHierarchies(t *testing.T) {
	root := withProcesses(t, map[string]string{"memory/c": "5\n7\n", "memory/c/sub": "9\n", "pids/c": "7\n11\n0\n"})
	paths := Paths{"memory": root + "/memory/c", "pids": root + "/pids/c", "cpu": root + "/cpu/gone"}
	pids, err := paths.Pids()
	if err != nil || !slices.Equal(pids, []int{5, 7, 9, 11}) {
		t.Errorf("%v %v", pids, err)
	}
}

func TestSignalWithoutProcessesIsNotFound(t *testing.T) {
	root := withProcesses(t, map[string]string{"c": ""})
	if err := (Paths{"": root + "/c"}).Signal(15); !errors.Is(err, errs.NotFound) {
		t.Errorf("%v", err)
	}
}

func TestKillReturnsWhenAllAreDead(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	root := withProcesses(t, map[string]string{"c": ""})
	procs := root + "/c/cgroup.procs"
	if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// It becomes a zombie, which does not count but is still listed.
	if err := (Paths{"pids": root + "/c"}).Kill(t.Context()); err != nil {
		t.Errorf("kill: %v", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
}

// TestSignalsReachOnlyWhatIsInTheCgroup: a pid that was listed is another process's by now.
func TestSignalsReachOnlyWhatIsInTheCgroup(t *testing.T) {
	in, out := exec.Command("sleep", "1000"), exec.Command("sleep", "1000")
	for _, cmd := range []*exec.Cmd{in, out} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	root := withProcesses(t, map[string]string{"c": strconv.Itoa(in.Process.Pid)})
	sent, err := (Paths{"pids": root + "/c"}).send([]int{in.Process.Pid, out.Process.Pid}, syscall.SIGKILL)
	if sent != 1 || err != nil {
		t.Errorf("%d signals were sent, %v", sent, err)
	}
	if err := out.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for cmd, want := range map[*exec.Cmd]syscall.Signal{in: syscall.SIGKILL, out: syscall.SIGTERM} {
		_ = cmd.Wait() // it is always an error
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != want {
			t.Errorf("a process ended by %v, want %v", status.Signal(), want)
		}
	}
}

// TestSignalPassesOverTheDead: a listed process may have ended while its process group lives. Then pidfd_open(2) does not
// answer ESRCH. The test uses the number of a thread, for which the kernel gives the same error.
func TestSignalPassesOverTheDead(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	thread := 0
	threads, err := os.ReadDir("/proc/self/task")
	for _, entry := range threads {
		if tid, err := strconv.Atoi(entry.Name()); err == nil && tid != os.Getpid() {
			thread = tid
		}
	}
	if err != nil || thread == 0 {
		t.Fatalf("thread %d, %v", thread, err)
	}
	root := withProcesses(t, map[string]string{"c": fmt.Sprintf("%d\n%d\n", thread, cmd.Process.Pid)})
	if err := (Paths{"pids": root + "/c"}).Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the other process was not killed")
	}
}

// written is what was written to a file that nobody may read, such as a new one in the place of a file of the kernel.
func written(t *testing.T, file string) string {
	t.Helper()
	if err := os.Chmod(file, 0o600); err != nil {
		t.Error(err)
	}
	return string(contentOf(file))
}

// TestKillByTheKernel: on a unified hierarchy cgroup.kill reaches every process, and no pid is used.
func TestKillByTheKernel(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	root := withProcesses(t, map[string]string{"c": strconv.Itoa(cmd.Process.Pid)})
	if err := (Paths{"": root + "/c"}).killOnce(); err != nil {
		t.Error(err)
	}
	if got := written(t, root+"/c/cgroup.kill"); got != "1" {
		t.Errorf("cgroup.kill has %q", got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("it was killed by its pid: %v", err)
	}
	_ = cmd.Wait() // it is always an error
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
		t.Errorf("it was killed by its pid: %v", status.Signal())
	}
}

func TestOOMKills(t *testing.T) {
	root := withProcesses(t, map[string]string{"v1": "", "v2": ""})
	os.WriteFile(root+"/v1/memory.oom_control", []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 0o600)
	os.WriteFile(root+"/v2/memory.events", []byte("low 0\noom 4\noom_kill 2\noom_group_kill 1\n"), 0o600)
	for name, tc := range map[string]struct {
		paths Paths
		want  uint64
	}{
		"v1":   {Paths{"memory": root + "/v1", "": root + "/none"}, 3},
		"v2":   {Paths{"": root + "/v2"}, 2},
		"gone": {Paths{"": root + "/gone"}, 0},
	} {
		if got, err := tc.paths.OOMKills(); got != tc.want || err != nil {
			t.Errorf("%s: %d %v", name, got, err)
		}
	}
}

// nest makes 20 directories below each other whose path is longer than a system call takes, and calls fn in each.
func nest(t *testing.T, root string, fn func(dir *os.Root)) {
	t.Helper()
	dir, err := os.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		name := strings.Repeat("x", 250)
		if err := dir.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		deeper, err := dir.OpenRoot(name)
		dir.Close()
		if err != nil {
			t.Fatal(err)
		}
		dir = deeper
		fn(dir)
	}
	dir.Close()
}

// TestDeepCgroups: a container that may write its cgroup nests others until their path is too long for a system call. It can be
// killed and removed all the same.
func TestDeepCgroups(t *testing.T) {
	root := t.TempDir()
	pid := 100
	nest(t, root, func(dir *os.Root) {
		pid++
		if err := dir.WriteFile(procsFile, []byte(strconv.Itoa(pid)), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	pids, err := (Paths{"": root}).Pids()
	if err != nil || len(pids) != 20 || pids[19] != 120 {
		t.Errorf("processes %v, %v", pids, err)
	}
	if got := (Paths{"": root}).Processes(); len(got) != 20 {
		t.Errorf("processes for figures: %v", got)
	}
	if err := (Paths{"": root}).Thaw(); err != nil {
		t.Errorf("thaw: %v", err)
	}
	cgroup := filepath.Join(t.TempDir(), "c")
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	nest(t, cgroup, func(*os.Root) {})
	if err := (Paths{"": cgroup}).Remove(t.Context()); err != nil {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Lstat(cgroup); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

// TestKillOfWhatCannotBeListed: cgroup.kill is written also when the processes cannot be listed.
func TestKillOfWhatCannotBeListed(t *testing.T) {
	root := withProcesses(t, map[string]string{"c": "no number"})
	if err := (Paths{"": root + "/c"}).Kill(t.Context()); err == nil {
		t.Error("no error")
	}
	if got := written(t, root+"/c/cgroup.kill"); got != "1" {
		t.Errorf("cgroup.kill has %q", got)
	}
}

func TestRemoveOfAnAbsentCgroup(t *testing.T) {
	if err := (Paths{"": t.TempDir() + "/gone"}).Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSubWithAvailableControllers(t *testing.T) {
	p := Paths{"freezer": "/f/c", "pids": "/p/c"}
	if sub := p.Sub("x", "freezer", "cpu"); len(sub) != 1 || sub["freezer"] != "/f/c/x" {
		t.Errorf("%v", sub)
	}
}

package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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

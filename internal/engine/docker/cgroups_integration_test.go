//go:build integration

package docker_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestContainerWithCgroupsOfItsOwn: systemd in a container moves itself to a cgroup below the
// container's. After a restart berth knows its process, and kills all in the container's cgroup.
func TestContainerWithCgroupsOfItsOwn(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	image := dockertest.LoadImage(t, d)
	p := newPod(t, newEngine(t, d), image)
	id := p.run("moves", "exec sleep 100000", nil)
	p.exec(engine.ExecSpec{ContainerID: id}, "sleep 100000 >/dev/null 2>&1 &")
	pid := p.pidOf(id)
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	group, err := tree.OfProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Admit(tree.PathOf(group)+"/init.scope", pid); err != nil {
		t.Fatal(err)
	}
	for _, dir := range group { // those of cgroup v1 that Admit leaves alone
		below := filepath.Join(dir, "init.scope")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatal(err)
		}
	}

	p.e = newEngine(t, d)
	if got := p.pidOf(id); got != pid {
		t.Errorf("the process is %d, want %d", got, pid)
	}
	pids, err := group.Pids()
	if err != nil || len(pids) < 2 {
		t.Fatalf("the processes are %v, %v; want two", pids, err)
	}
	var ended []*os.File
	for _, pid := range pids {
		pidfd, err := sysproc.OpenPidfd(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer pidfd.Close()
		ended = append(ended, pidfd)
	}
	if err := p.e.Signal(t.Context(), id, syscall.SIGKILL, true); err != nil {
		t.Error(err)
	}
	for i, pidfd := range ended {
		if err := sysproc.AwaitExit(within(t), pidfd); err != nil {
			t.Errorf("process %d: %v", pids[i], err)
		}
	}
}

// pidOf returns the process of a container, as a list has it.
func (p *pod) pidOf(id string) int {
	p.t.Helper()
	listed, err := p.e.List(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, actual := range listed {
		if actual.ID == id {
			return actual.Pid
		}
	}
	p.t.Fatalf("container %s is not in %v", id, listed)
	return 0
}

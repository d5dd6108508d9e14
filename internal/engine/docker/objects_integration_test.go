//go:build integration

package docker

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestProcessesOfOthersAreNotAContainers: the pid that an engine reports of a container may be a zombie's
// or another process's meanwhile. Nothing is known of such a container then, so that a kill of all its
// processes kills no other.
func TestProcessesOfOthersAreNotAContainers(t *testing.T) {
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = zombie.Wait() })
	if err := unix.Waitid(unix.P_PID, zombie.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("a", 64)
	for name, pid := range map[string]int{"init": 1, "a zombie": zombie.Process.Pid, "none": 0} {
		objects := newObjects(nil, "test", tree)
		got := &container.InspectResponse{
			ID: id, State: &container.State{Running: true, Pid: pid}, Config: &container.Config{}, HostConfig: &container.HostConfig{},
		}
		if obj := objects.started("id", got); obj.pid != 0 || len(obj.cgroups) != 0 || obj.engineID != id {
			t.Errorf("%s: process %d in the cgroups %v", name, obj.pid, obj.cgroups)
		}
	}
}

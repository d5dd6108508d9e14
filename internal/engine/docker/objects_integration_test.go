//go:build integration

package docker

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
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
		objects := newObjects(nil, "test", tree, slog.New(slog.DiscardHandler))
		got := &container.InspectResponse{
			ID: id, State: &container.State{Running: true, Pid: pid}, Config: &container.Config{}, HostConfig: &container.HostConfig{},
		}
		if obj := objects.started("id", got); obj.pid != 0 || len(obj.cgroups) != 0 || obj.engineID != id {
			t.Errorf("%s: process %d in the cgroups %v", name, obj.pid, obj.cgroups)
		}
	}
}

// TestPinsOfOthers: a pause container that has ended leaves its pid to others, and their network
// namespace, or that of the host, must not become a pod's.
func TestPinsOfOthers(t *testing.T) {
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("unshare", "--net", "sh", "-c", "echo; read x")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(in.Close(), other.Wait()) })
	if _, err := out.Read(make([]byte, 1)); err != nil { // it is in its namespace
		t.Fatal(err)
	}
	e := &Engine{objects: newObjects(nil, "test", tree, slog.New(slog.DiscardHandler))}
	for name, pid := range map[string]int{"one of the host's network": os.Getpid(), "another process": other.Process.Pid, "none": 0, "one that has ended": 1 << 22} {
		path := filepath.Join(t.TempDir(), "pin")
		if err := e.pinNetNS(object{engineID: strings.Repeat("a", 64), pid: pid}, path); !errors.Is(err, errs.State) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the pin is left: %v", name, err)
		}
	}
}

package docker

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/checkpoints"
	"github.com/berthrun/berth/internal/engine/podcgroup"
)

// TestTargetsWithoutACgroup: an adopted pod without a cgroup of its own has the figures of its network
// alone, not those of the cgroup that the engine puts all such containers in.
func TestTargetsWithoutACgroup(t *testing.T) {
	for _, driver := range []string{podcgroup.Cgroupfs, podcgroup.Systemd} {
		e := &Engine{podCgroups: podcgroup.New(podcgroup.Config{Driver: driver}, nil)}
		targets, err := e.sandboxTargets([]engine.SandboxRef{{
			Spec: &engine.SandboxSpec{ID: "a"}, Sandbox: &engine.Sandbox{NetNS: "/run/netns/a"},
		}})
		if got := targets["a"]; err != nil || len(got.Cgroups) != 0 || got.NetNS != "/run/netns/a" {
			t.Errorf("%s: %+v, %v", driver, got, err)
		}
	}
}

// TestCheckpointsOfAdoptedPods: a checkpoint goes with its adopted sandbox, also when the removal is
// repeated. Without adopted sandboxes the directories are none of berth's business.
func TestCheckpointsOfAdoptedPods(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "sandbox", "a")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	e := &Engine{former: checkpoints.Dirs{Roots: []string{root}}, objects: newObjects(nil, "test", nil, slog.New(slog.DiscardHandler))}
	e.objects.put("a", object{engineID: "a", sandbox: true})
	if err := e.removeCheckpoint("a"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the checkpoint of a sandbox that is not adopted: %v", err)
	}
	e.objects.adopt("a", true)
	e.objects.forget("a") // its container is removed, and berth is killed or fails then
	if err := e.removeCheckpoint("a"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the checkpoint is left: %v", err)
	}
	if e.objects.removed("a"); e.objects.isAdopted("a") {
		t.Error("a removed sandbox is adopted")
	}
}

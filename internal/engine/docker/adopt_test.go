package docker

import (
	"testing"

	"github.com/berthrun/berth/internal/engine"
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

package strays

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestCgroupOf: the cgroup of a container is that which the engine makes with the driver of the pods.
func TestCgroupOf(t *testing.T) {
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("a", 64)
	for driver, c := range map[string]struct{ parent, want string }{
		podcgroup.Systemd:  {"kubepods-burstable.slice", "kubepods.slice/kubepods-burstable.slice/docker-" + id + ".scope"},
		podcgroup.Cgroupfs: {"/kubepods/burstable", "kubepods/burstable/" + id},
	} {
		k := &Killer{Cgroups: podcgroup.New(podcgroup.Config{Driver: driver}, tree), Driver: driver, Log: slog.New(slog.DiscardHandler)}
		got := &container.InspectResponse{ID: id, HostConfig: &container.HostConfig{}}
		if group := k.CgroupOf(got); group != nil {
			t.Errorf("%s: a container with the engine's own parent has the cgroups %v", driver, group)
		}
		got.HostConfig.CgroupParent = c.parent
		group := k.CgroupOf(got)
		if len(group) == 0 {
			t.Errorf("%s: no cgroup", driver)
		}
		for controller, dir := range group {
			if !strings.HasSuffix(dir, string(filepath.Separator)+c.want) {
				t.Errorf("%s: %s is %s, want %s at its end", driver, controller, dir, c.want)
			}
		}
		if err := k.Kill(t.Context(), "c", id, group); err != nil {
			t.Errorf("%s: the kill of processes in a cgroup that does not exist: %v", driver, err)
		}
	}
}

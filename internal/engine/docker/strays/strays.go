// Package strays finds and kills processes that run on after the end of their container, because a
// Docker Engine has lost them.
package strays

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/engine/docker/killtree"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Killer kills them by the cgroups of their containers.
type Killer struct {
	Cgroups *podcgroup.Manager
	// Driver is the cgroup driver that pods have.
	Driver string
	Log    *slog.Logger
}

// CgroupOf returns the cgroup that a container has while it runs, nil for one with the engine's own
// parent.
func (k *Killer) CgroupOf(got *container.InspectResponse) cgroup.Paths {
	parent := got.HostConfig.CgroupParent
	if parent == "" {
		return nil
	}
	parents, err := k.Cgroups.Paths(parent)
	if err != nil {
		return nil
	}
	group := cgroup.Paths{}
	for controller, dir := range parents {
		group[controller] = filepath.Join(dir, k.CgroupName(got.ID))
	}
	return group
}

// CgroupName returns the last part of the path of a container's cgroup.
func (k *Killer) CgroupName(engineID string) string {
	if k.Driver == podcgroup.Systemd {
		return "docker-" + engineID + ".scope"
	}
	return engineID
}

// strayTimeout bounds the kill of processes that the engine has lost.
const strayTimeout = 10 * time.Second

// Kill kills what runs in the cgroup of a container that does not run any more.
func (k *Killer) Kill(ctx context.Context, id, engineID string, group cgroup.Paths) error {
	if len(group) == 0 {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, strayTimeout)
	defer stop()
	killed, err := killtree.Strays(ctx, engineID, group)
	if err != nil {
		return fmt.Errorf("cannot end processes that the Docker engine has lost: %w", err)
	}
	if killed {
		k.Log.Warn("processes of a container ran on after its end; they were killed", "container", id, "dockerID", engineID)
	}
	return nil
}

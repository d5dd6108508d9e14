package native

import (
	"context"
	"maps"
	"slices"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/meter"
	"github.com/berthrun/berth/internal/engine/native/volume"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

var (
	_ engine.Meter        = (*Engine)(nil)
	_ engine.Placeholders = (*Engine)(nil)
	_ engine.Inspector    = (*Engine)(nil)
)

// Stats reads the figures of containers.
func (e *Engine) Stats(ctx context.Context, ids []string) (map[string]*runtimeapi.ContainerStats, error) {
	targets, err := e.containerTargets(ctx, ids)
	if err != nil {
		return nil, err
	}
	return e.meter.Containers(ctx, targets)
}

// SandboxStats reads the figures of pods' cgroups and of their networks.
func (e *Engine) SandboxStats(ctx context.Context, sandboxes []engine.SandboxRef) (map[string]*runtimeapi.LinuxPodSandboxStats, error) {
	targets, err := e.sandboxTargets(sandboxes)
	if err != nil {
		return nil, err
	}
	return e.meter.Sandboxes(ctx, targets)
}

// Figures implements engine.Meter.
func (e *Engine) Figures(ctx context.Context, sandboxes []engine.SandboxRef, containers []string) (map[string]*engine.Figures, error) {
	targets, err := e.containerTargets(ctx, containers)
	if err != nil {
		return nil, err
	}
	pods, err := e.sandboxTargets(sandboxes)
	if err != nil {
		return nil, err
	}
	maps.Copy(targets, pods)
	return e.meter.Figures(ctx, targets, true)
}

// Written adds up what all containers have written, as far as it is known.
func (e *Engine) Written(ctx context.Context) (image.Usage, error) {
	keys, err := e.cfg.Rootfs.Keys(ctx)
	if err != nil {
		return image.Usage{}, err
	}
	return e.meter.Written(slices.DeleteFunc(keys, func(key string) bool {
		_, mounted := volume.SandboxOfKey(key)
		return mounted // an image, which is read-only
	})), nil
}

func (e *Engine) sandboxTargets(sandboxes []engine.SandboxRef) (map[string]meter.Target, error) {
	targets := make(map[string]meter.Target, len(sandboxes))
	for _, ref := range sandboxes {
		groups, err := e.podCgroups.Paths(ref.Sandbox.CgroupParent)
		if err != nil {
			return nil, err
		}
		targets[ref.Spec.ID] = meter.Target{Cgroups: groups, NetNS: ref.Sandbox.NetNS}
	}
	return targets, nil
}

func (e *Engine) containerTargets(ctx context.Context, ids []string) (map[string]meter.Target, error) {
	groups, err := e.cgroups.of(ctx, ids)
	if err != nil {
		return nil, err
	}
	targets := make(map[string]meter.Target, len(groups))
	for id, paths := range groups {
		targets[id] = meter.Target{Cgroups: paths, Writes: true}
	}
	return targets, nil
}

// cgroups caches the containers' cgroups, which the supervisor reports.
type cgroups struct {
	list func(context.Context) ([]supervisor.Container, error)
	// exists reports whether there is such a container. It is true before put and false
	// before forget.
	exists func(id string) bool

	mu sync.Mutex
	// known has nil for a container without a cgroup.
	known map[string]cgroup.Paths
}

func (c *cgroups) put(id string, paths cgroup.Paths) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[id] = paths
}

func (c *cgroups) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, id)
}

// of lists the supervisor's containers once for those that are not in the cache, after a
// restart. It leaves out those without a cgroup.
func (c *cgroups) of(ctx context.Context, ids []string) (map[string]cgroup.Paths, error) {
	groups, unknown := c.find(ids)
	if len(unknown) == 0 {
		return groups, nil
	}
	containers, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	reported := make(map[string]cgroup.Paths, len(containers))
	for _, one := range containers {
		if len(one.CgroupPaths) > 0 {
			reported[one.ID] = cgroup.Paths(one.CgroupPaths)
		}
	}
	c.learn(unknown, reported)
	groups, _ = c.find(ids)
	return groups, nil
}

// learn caches the cgroups of containers that still exist. No later forget would remove the
// others.
func (c *cgroups) learn(ids []string, reported map[string]cgroup.Paths) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if _, ok := c.known[id]; !ok && c.exists(id) {
			c.known[id] = reported[id]
		}
	}
}

func (c *cgroups) find(ids []string) (groups map[string]cgroup.Paths, unknown []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	groups = make(map[string]cgroup.Paths, len(ids))
	for _, id := range ids {
		switch paths, ok := c.known[id]; {
		case !ok:
			unknown = append(unknown, id)
		case paths != nil:
			groups[id] = paths
		}
	}
	return groups, unknown
}

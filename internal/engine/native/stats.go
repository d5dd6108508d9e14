package native

import (
	"context"
	"maps"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/cgroup"
	"github.com/berthrun/berth/internal/engine/native/meter"
)

var (
	_ engine.Meter     = (*Engine)(nil)
	_ engine.Marker    = (*Engine)(nil)
	_ engine.Inspector = (*Engine)(nil)
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

func (e *Engine) sandboxTargets(sandboxes []engine.SandboxRef) (map[string]meter.Target, error) {
	targets := make(map[string]meter.Target, len(sandboxes))
	for _, ref := range sandboxes {
		groups, err := e.podCgroup(ref.Sandbox.CgroupParent)
		if err != nil {
			return nil, err
		}
		targets[ref.Spec.ID] = meter.Target{Cgroups: groups, NetNS: ref.Sandbox.NetNS}
	}
	return targets, nil
}

// containerTargets asks the supervisor once for the containers that we did not make
// ourselves (after a restart).
func (e *Engine) containerTargets(ctx context.Context, ids []string) (map[string]meter.Target, error) {
	targets, missing := e.knownTargets(ids)
	if !missing {
		return targets, nil
	}
	containers, err := e.cfg.Supervisor.List(ctx)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	for _, c := range containers {
		if len(c.CgroupPaths) > 0 {
			e.cgroups[c.ID] = cgroup.Paths(c.CgroupPaths)
		}
	}
	e.mu.Unlock()
	targets, _ = e.knownTargets(ids)
	return targets, nil
}

func (e *Engine) knownTargets(ids []string) (targets map[string]meter.Target, missing bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	targets = make(map[string]meter.Target, len(ids))
	for _, id := range ids {
		paths, ok := e.cgroups[id]
		if !ok {
			missing = true
			continue
		}
		targets[id] = meter.Target{Cgroups: paths, Writes: true}
	}
	return targets, missing
}

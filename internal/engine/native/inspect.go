package native

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/supervisor"
)

// Inspect implements engine.Inspector.
func (e *Engine) Inspect(ctx context.Context, requested *engine.InspectSpec) (map[string]any, error) {
	spec, err := e.ContainerSpec(ctx, requested.ContainerID, requested.Resources)
	if err != nil {
		return nil, err
	}
	if !requested.Secrets {
		hideSecrets(spec)
	}
	shown := map[string]any{"runtimeSpec": spec, "snapshotter": e.cfg.Rootfs.Snapshotter(requested.ContainerID), "snapshotKey": requested.ContainerID}
	return shown, e.addStarter(ctx, requested.ContainerID, shown)
}

// ContainerSpec implements engine.SpecReader.
func (e *Engine) ContainerSpec(_ context.Context, id string, resources *runtimeapi.LinuxContainerResources) (*specs.Spec, error) {
	spec, err := e.bundles.ReadSpec(id)
	if err != nil {
		return nil, err
	}
	if resources != nil && spec.Linux != nil {
		limits, err := ocispec.Resources(request.FieldUpdate, resources, e.host)
		if err != nil {
			return nil, fmt.Errorf("cannot show the limits of container %s: %w", id, err)
		}
		if old := spec.Linux.Resources; old != nil {
			limits.Devices = old.Devices // no update changes them
			limits.Pids, limits.BlockIO = old.Pids, old.BlockIO
			unified := maps.Clone(old.Unified) // annotations may have added to them
			if unified == nil {
				unified = limits.Unified
			}
			maps.Copy(unified, limits.Unified)
			limits.Unified = unified
		}
		spec.Linux.Resources = limits
	}
	return spec, nil
}

// addStarter adds what created a container, and why it was not berth's own init. Nothing is added for a
// container that the supervisor does not know any more, or has from an earlier version.
func (e *Engine) addStarter(ctx context.Context, id string, shown map[string]any) error {
	list, err := e.cfg.Supervisor.List(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list, func(c supervisor.Container) bool { return c.ID == id })
	if at < 0 || list[at].Starter == "" {
		return nil
	}
	shown["starter"] = list[at].Starter
	if reason := list[at].StarterReason; reason != "" {
		shown["starterReason"] = reason
	}
	return nil
}

// hideSecrets removes the values from the environments of the container and its hooks.
func hideSecrets(spec *specs.Spec) {
	if spec.Process != nil {
		hideValues(spec.Process.Env)
	}
	h := spec.Hooks
	if h == nil {
		return
	}
	for _, hooks := range [][]specs.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop} { //nolint:staticcheck // Prestart is old, and may be there
		for _, hook := range hooks {
			hideValues(hook.Env)
		}
	}
}

// hideValues returns only the names of an environment.
func hideValues(env []string) {
	for i, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		env[i] = name + "=[hidden]"
	}
}

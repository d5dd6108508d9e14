package podtest

import (
	"context"
	"syscall"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/store"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EngineOf is an engine behind a script. Calls that it does not name (Attach,
// Exec, figures) pass it by.
type EngineOf struct {
	engine.Engine
	Script *Script
}

// CreateSandbox implements engine.Engine.
func (e *EngineOf) CreateSandbox(ctx context.Context, spec *engine.SandboxSpec) (*engine.Sandbox, error) {
	return get(ctx, e.Script, "engine.CreateSandbox", func() (*engine.Sandbox, error) { return e.Engine.CreateSandbox(ctx, spec) })
}

// StartSandbox implements engine.Engine.
func (e *EngineOf) StartSandbox(ctx context.Context, spec *engine.SandboxSpec, sb *engine.Sandbox) (*engine.Sandbox, error) {
	return get(ctx, e.Script, "engine.StartSandbox", func() (*engine.Sandbox, error) { return e.Engine.StartSandbox(ctx, spec, sb) })
}

// StopSandbox implements engine.Engine.
func (e *EngineOf) StopSandbox(ctx context.Context, id string) error {
	return run(ctx, e.Script, "engine.StopSandbox", func() error { return e.Engine.StopSandbox(ctx, id) })
}

// ReleaseSandbox implements engine.Engine.
func (e *EngineOf) ReleaseSandbox(ctx context.Context, id string) error {
	return run(ctx, e.Script, "engine.ReleaseSandbox", func() error { return e.Engine.ReleaseSandbox(ctx, id) })
}

// RemoveSandbox implements engine.Engine.
func (e *EngineOf) RemoveSandbox(ctx context.Context, id string) error {
	return run(ctx, e.Script, "engine.RemoveSandbox", func() error { return e.Engine.RemoveSandbox(ctx, id) })
}

// ContainerSpec implements engine.SpecReader.
func (e *EngineOf) ContainerSpec(ctx context.Context, id string, resources *runtimeapi.LinuxContainerResources) (*specs.Spec, error) {
	if reader, ok := e.Engine.(engine.SpecReader); ok {
		return reader.ContainerSpec(ctx, id, resources)
	}
	return nil, nil
}

// Inspect implements engine.Inspector.
func (e *EngineOf) Inspect(ctx context.Context, requested *engine.InspectSpec) (map[string]any, error) {
	return get(ctx, e.Script, "engine.Inspect", func() (map[string]any, error) {
		if inspector, ok := e.Engine.(engine.Inspector); ok {
			return inspector.Inspect(ctx, requested)
		}
		return nil, nil
	})
}

// ReopenLog implements engine.LogReopener.
func (e *EngineOf) ReopenLog(ctx context.Context, id string) error {
	return e.Engine.(engine.LogReopener).ReopenLog(ctx, id)
}

// Create implements engine.Engine.
func (e *EngineOf) Create(ctx context.Context, spec *engine.ContainerSpec) (*engine.Container, error) {
	return get(ctx, e.Script, "engine.Create", func() (*engine.Container, error) { return e.Engine.Create(ctx, spec) })
}

// Update implements engine.Engine.
func (e *EngineOf) Update(ctx context.Context, id string, res *runtimeapi.LinuxContainerResources) error {
	return run(ctx, e.Script, "engine.Update", func() error { return e.Engine.Update(ctx, id, res) })
}

// UpdateSandbox implements engine.Engine.
func (e *EngineOf) UpdateSandbox(ctx context.Context, sb *engine.Sandbox, res *runtimeapi.LinuxContainerResources) error {
	return run(ctx, e.Script, "engine.UpdateSandbox", func() error { return e.Engine.UpdateSandbox(ctx, sb, res) })
}

// Start implements engine.Engine.
func (e *EngineOf) Start(ctx context.Context, id string) (int, error) {
	return get(ctx, e.Script, "engine.Start", func() (int, error) { return e.Engine.Start(ctx, id) })
}

// Signal implements engine.Engine.
func (e *EngineOf) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	return run(ctx, e.Script, "engine.Signal", func() error { return e.Engine.Signal(ctx, id, sig, all) })
}

// Remove implements engine.Engine.
func (e *EngineOf) Remove(ctx context.Context, id string) error {
	return run(ctx, e.Script, "engine.Remove", func() error { return e.Engine.Remove(ctx, id) })
}

// List implements engine.Engine. It has no points of its own, since it changes
// nothing, but a dead daemon gets no answer.
func (e *EngineOf) List(ctx context.Context) ([]engine.Actual, error) {
	select {
	case <-e.Script.Crashed():
		return nil, ErrDead
	default:
		return e.Engine.List(ctx)
	}
}

// Exits implements engine.Engine. A dead daemon gets no more exits.
func (e *EngineOf) Exits(ctx context.Context) (<-chan engine.Exit, error) {
	select {
	case <-e.Script.Crashed():
		return nil, ErrDead
	default:
	}
	ctx, cancel := e.Script.alive(ctx)
	exits, err := e.Engine.Exits(ctx)
	if err != nil {
		cancel()
	}
	return exits, err //nolint:gosec // alive's context ends with ctx
}

// Former implements engine.Adopter. As List, it has no points of its own.
func (e *EngineOf) Former(ctx context.Context) (*engine.Former, error) {
	adopter, can := e.Engine.(engine.Adopter)
	if !can {
		return &engine.Former{}, nil
	}
	select {
	case <-e.Script.Crashed():
		return nil, ErrDead
	default:
		return adopter.Former(ctx)
	}
}

// AdoptSandbox implements engine.Adopter.
func (e *EngineOf) AdoptSandbox(ctx context.Context, id string, sb *engine.Sandbox) error {
	return run(ctx, e.Script, "engine.AdoptSandbox", func() error { return e.Engine.(engine.Adopter).AdoptSandbox(ctx, id, sb) })
}

// AdoptContainer implements engine.Adopter.
func (e *EngineOf) AdoptContainer(ctx context.Context, id string) error {
	return run(ctx, e.Script, "engine.AdoptContainer", func() error { return e.Engine.(engine.Adopter).AdoptContainer(ctx, id) })
}

// NetworkOf is a network behind a script.
type NetworkOf struct {
	network.Network
	Script *Script
}

// Attach implements network.Network.
func (n *NetworkOf) Attach(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	return get(ctx, n.Script, "network.Attach", func() (*network.Result, error) { return n.Network.Attach(ctx, att) })
}

// Adopt implements network.Adopter.
func (n *NetworkOf) Adopt(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	return get(ctx, n.Script, "network.Adopt", func() (*network.Result, error) { return n.Network.(network.Adopter).Adopt(ctx, att) })
}

// Detach implements network.Network.
func (n *NetworkOf) Detach(ctx context.Context, att *network.Attachment) error {
	return run(ctx, n.Script, "network.Detach", func() error { return n.Network.Detach(ctx, att) })
}

// GC implements network.Network.
func (n *NetworkOf) GC(ctx context.Context, live []string) error {
	return run(ctx, n.Script, "network.GC", func() error { return n.Network.GC(ctx, live) })
}

// ImagesOf is an image store behind a script.
type ImagesOf struct {
	image.Store
	Script *Script
}

// Get implements image.Store.
func (i *ImagesOf) Get(ctx context.Context, ref string) (*image.Image, error) {
	return get(ctx, i.Script, "image.Get", func() (*image.Image, error) { return i.Store.Get(ctx, ref) })
}

// GetFor implements image.PlatformStore. To the script it is Get.
func (i *ImagesOf) GetFor(ctx context.Context, platform, ref string) (*image.Image, error) {
	return get(ctx, i.Script, "image.Get", func() (*image.Image, error) {
		if images, ok := i.Store.(image.PlatformStore); ok {
			return images.GetFor(ctx, platform, ref)
		}
		return i.Store.Get(ctx, ref)
	})
}

// RemoveFor implements image.PlatformStore, beside the script. The rules remove no image.
func (i *ImagesOf) RemoveFor(ctx context.Context, _, ref string) error {
	return i.Store.Remove(ctx, ref)
}

// Admit implements image.Admitter, beside the script.
func (i *ImagesOf) Admit(ctx context.Context, namespace, ref, name string) error {
	if admitter, ok := i.Store.(image.Admitter); ok {
		return admitter.Admit(ctx, namespace, ref, name)
	}
	return nil
}

// Disk is a file system behind a script.
type Disk struct {
	Script *Script
}

// Write implements store.Disk.
func (d *Disk) Write(path string, data []byte) error {
	return run(context.Background(), d.Script, "disk.Write", func() error { return store.FileSystem{}.Write(path, data) })
}

// WriteWhole implements store.Disk. It is Write: nothing is seen of the difference without a loss of power.
func (d *Disk) WriteWhole(path string, data []byte) error { return d.Write(path, data) }

// Remove implements store.Disk.
func (d *Disk) Remove(path string) error {
	return run(context.Background(), d.Script, "disk.Remove", func() error { return store.FileSystem{}.Remove(path) })
}

// Sync implements store.Disk. It has no points: nothing is seen of it without a
// loss of power.
func (d *Disk) Sync(string) error { return nil }

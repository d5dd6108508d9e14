package native

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/faultfield"
	"github.com/berthrun/berth/internal/engine/hostpath"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// creation is the state of a Create: the request, and what the features have prepared so
// far.
type creation struct {
	*containerSpec
	labels selinux.Labels
	// in is what the OCI spec is computed from, base what that is based on (nil for nothing), oci is that spec.
	in        ocispec.Input
	base, oci *specs.Spec
	// missing are mount sources that have to be made.
	missing []hostpath.Missing
	// request goes to the supervisor.
	request supervisor.CreateRequest
}

// Create prepares the container's features, and lets the supervisor create the container.
func (e *Engine) Create(ctx context.Context, requested *engine.ContainerSpec) (_ *engine.Container, err error) {
	e.warm()
	spec, err := e.specOf(requested)
	if err != nil {
		return nil, err
	}
	defer func() { err = e.withLimit(spec, err) }()
	c := &creation{containerSpec: spec}
	for _, f := range features() {
		if err := f.prepare(e, ctx, c); err != nil {
			return nil, err
		}
	}
	container := &engine.Container{User: userOf(c.in.User)}
	made, err := e.cfg.Supervisor.Create(ctx, &c.request)
	if c.Restored != "" {
		err = e.checkRestored(c, made, err)
	}
	var fault *supervisor.ProgramError
	switch {
	case errors.As(err, &fault):
		container.StartError = fault.Text
		return container, e.madeSources(c.ID).Keep()
	case err != nil:
		return nil, faultfield.Container(c.Config, e.withHook(ctx, c.oci.Hooks, err))
	}
	if err := e.madeSources(c.ID).Keep(); err != nil {
		return nil, err
	}
	e.cgroups.put(c.ID, made.CgroupPaths)
	e.meter.Watch(c.ID, cgroup.Paths(made.CgroupPaths))
	return container, nil
}

// Remove removes the container's processes first: while one lives, its root
// filesystem must stay.
func (e *Engine) Remove(ctx context.Context, id string) error {
	if err := e.cfg.Supervisor.Remove(ctx, id); err != nil {
		return err
	}
	for _, f := range slices.Backward(features()) {
		if f.remove == nil {
			continue
		}
		if err := f.remove(e, ctx, id); err != nil {
			return err
		}
	}
	e.cgroups.forget(id)
	e.meter.Forget(id)
	return nil
}

// specOf reads a request's sandbox, and adds the requests of the pod's annotations to its
// config.
func (e *Engine) specOf(requested *engine.ContainerSpec) (*containerSpec, error) {
	sb, err := sandboxOf(requested.Sandbox)
	if err != nil {
		return nil, err
	}
	spec := *requested
	spec.Config, err = request.WithAnnotations(requested.Config, requested.SandboxSpec.Config, e.rules().AllowedAnnotations)
	if err != nil {
		return nil, err
	}
	// CheckContainer has not seen what annotations added.
	if err := check.Resources(request.FieldCreate, spec.Config.GetLinux().GetResources()); err != nil {
		return nil, err
	}
	return &containerSpec{ContainerSpec: &spec, Sandbox: sb}, nil
}

// The stage of the caller. A feature with a stage of its own returns to it.
const (
	stageCreate = "create container"
	stageEngine = "the engine"
)

// stageOf is the Stage of a request, or a function that does nothing.
func stageOf(spec *containerSpec) func(name, waitsFor string) {
	if spec.Stage == nil {
		return func(string, string) {}
	}
	return spec.Stage
}

// madeSources records in a container's bundle the directories that are made for its mounts.
func (e *Engine) madeSources(id string) hostpath.Made {
	return hostpath.Made{Probes: e.probes, Claims: &e.claims, File: filepath.Join(e.bundles.Dir(id), "made")}
}

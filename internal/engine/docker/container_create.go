package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/device"
	"github.com/berthrun/berth/internal/engine/docker/faults"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/logs"
	"github.com/berthrun/berth/internal/engine/docker/oomscore"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/engine/docker/users"
	"github.com/berthrun/berth/internal/engine/hostpath"
	"github.com/berthrun/berth/internal/engine/podfiles"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// CheckContainer implements engine.Engine.
func (e *Engine) CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	facts, rules := *e.facts.Load(), e.rules()
	return errors.Join(translate.CheckContainer(config, sandbox, facts), translate.CheckPrivileged(config, translate.PrivilegedRules{
		WithoutDevices: rules.Devices.PrivilegedWithoutHost, Filtered: rules.Seccomp.Privileged != "",
	}, facts))
}

// CheckResources implements engine.Engine.
func (e *Engine) CheckResources(field string, limits *runtimeapi.LinuxContainerResources) error {
	return translate.CheckResources(field, limits, *e.facts.Load())
}

// Create creates a container in the Docker Engine. That starts no process: a program that
// cannot be executed is found by Start.
func (e *Engine) Create(ctx context.Context, requested *engine.ContainerSpec) (*engine.Container, error) {
	spec, err := e.specOf(requested)
	if err != nil {
		return nil, err
	}
	in, err := e.inputOf(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(e.containerDir(spec.ID), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the container's directory: %w", err)
	}
	e.objects.rejoinKnown(spec.SandboxSpec.ID) // systemd may have moved it after its start
	if in.Devices, err = e.devicesOf(ctx, spec); err != nil {
		return nil, err
	}
	if err := e.prepareFiles(ctx, spec); err != nil {
		return nil, err
	}
	defer e.objects.create(spec.ID)()
	engineID, err := e.createAs(ctx, in)
	if faults.IsOfDirectory(err) {
		return &engine.Container{User: shownUser(in.User), StartError: err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	e.objects.put(spec.ID, object{engineID: engineID, tty: spec.Config.GetTty()})
	e.unstarted.Created(spec.ID, spec.Config)
	e.notices().Container(spec, false)
	log := e.logOf(spec.ID, engineID, spec.LogPath, spec.Config.GetTty())
	log.Root = spec.SandboxSpec.Config.GetLogDirectory()
	err = e.logs.Begin(ctx, log)
	if errors.Is(err, errs.Invalid) {
		err = fmt.Errorf("config.log_path: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &engine.Container{User: shownUser(in.User)}, nil
}

// createAs creates a container for the user of the request, or of the image, which it looks up in the
// image's files.
func (e *Engine) createAs(ctx context.Context, in *translate.ContainerInput) (engineID string, err error) {
	files, err := e.usersOf(ctx, in)
	if err != nil {
		return "", err
	}
	if in.User, err = ocispec.ResolveUser(in.Spec.Config, in.Spec.ImageConfig, files.Passwd, files.Group); err != nil {
		return "", err
	}
	options, err := translate.Container(*in)
	if err != nil {
		return "", err
	}
	return e.createContainer(ctx, options)
}

// usersOf returns the files of the image of a container that say who its users are. They can be read
// from a container only. A pod's own one has the pod's mounts, which can hide the image's files and
// can hang, so usersOf makes another one and removes it. If it fails, the removal of the container
// removes what is left.
func (e *Engine) usersOf(ctx context.Context, in *translate.ContainerInput) (users.Files, error) {
	files, known := e.users.Kept(in.Spec.ImageID)
	if known {
		return files, nil
	}
	bareID, err := e.createContainer(ctx, users.Bare(in.Name, in.Spec.ImageID, in.Labels))
	if err != nil {
		return users.Files{}, err
	}
	e.objects.put(in.Spec.ID, object{engineID: bareID})
	files, err = e.users.Read(ctx, in.Spec.ImageID, bareID)
	if errors.Is(err, errs.Invalid) {
		err = fmt.Errorf("config.image.image: cannot read the users of the image: %w", err)
	}
	if err != nil {
		return users.Files{}, err
	}
	e.objects.remove(in.Spec.ID) // its removal is not an exit
	if err := e.remove(ctx, bareID); err != nil {
		return users.Files{}, err
	}
	e.objects.forget(in.Spec.ID)
	return files, nil
}

// shownUser is a user for the status of a container.
func shownUser(user ocispec.User) *engine.User {
	groups := make([]int64, len(user.Groups))
	for i, gid := range user.Groups {
		groups[i] = int64(gid)
	}
	return &engine.User{UID: int64(user.UID), GID: int64(user.GID), Groups: groups}
}

// specOf adds the requests of the pod's annotations to the container's.
func (e *Engine) specOf(requested *engine.ContainerSpec) (*engine.ContainerSpec, error) {
	spec := *requested
	var err error
	spec.Config, err = request.WithAnnotations(requested.Config, requested.SandboxSpec.Config, e.rules().AllowedAnnotations)
	if err != nil {
		return nil, err
	}
	// CheckContainer has not seen what annotations added.
	return &spec, e.CheckResources(request.FieldCreate, spec.Config.GetLinux().GetResources())
}

// devicesOf finds the device nodes that a container gets. The Docker Engine itself gives privileged
// containers those of the host.
func (e *Engine) devicesOf(ctx context.Context, spec *engine.ContainerSpec) ([]ocispec.Device, error) {
	rules := e.rules().Devices
	rules.PrivilegedWithoutHost = true
	nodes, err := device.Finder{Probes: e.probes}.Of(ctx, &rules, spec.Config)
	if err != nil || !rules.OwnedByUser {
		return nodes, err
	}
	return device.Owned(filepath.Join(e.containerDir(spec.ID), "devices"), nodes)
}

// prepareFiles makes the directory of the container's log, and directories in the place of missing
// mount sources, which the Docker Engine would refuse. The latter stay once the container has
// started.
func (e *Engine) prepareFiles(ctx context.Context, spec *engine.ContainerSpec) error {
	find := hostpath.Finder{Probes: e.probes, Claims: &e.claims, Rejected: e.rules().AbsentSources}
	sources, missing, err := find.Find(ctx, spec.Config.GetMounts(), "")
	if err != nil {
		return err
	}
	for i, m := range spec.Config.GetMounts() {
		if _, err := ocispec.Propagation(fielderror.Index("config.mounts", i, "propagation"), m, sources[m.GetHostPath()]); err != nil {
			return err
		}
	}
	if spec.LogPath != "" {
		if _, err := podfiles.MakeLogDir(ctx, e.probes, spec.SandboxSpec.Config.GetLogDirectory(), spec.LogPath); err != nil {
			return err
		}
	}
	return e.madeSources(spec.ID).Make(ctx, missing)
}

// madeSources records in a container's directory the directories that are made for its mounts.
func (e *Engine) madeSources(id string) hostpath.Made {
	return hostpath.Made{Probes: e.probes, Claims: &e.claims, File: filepath.Join(e.containerDir(id), "made")}
}

// inputOf looks up what the request needs of the host and of the sandbox.
func (e *Engine) inputOf(ctx context.Context, spec *engine.ContainerSpec) (*translate.ContainerInput, error) {
	sandbox, err := e.objects.find(ctx, spec.SandboxSpec.ID)
	if err != nil {
		return nil, err
	}
	rules := e.rules()
	in := &translate.ContainerInput{
		Spec: spec, Name: labels.ContainerName(spec.Config, spec.SandboxSpec.Config),
		Labels:    labels.OfContainer(spec, e.cfg.Instance, sandbox.engineID),
		SandboxID: sandbox.engineID, CgroupParent: spec.Sandbox.CgroupParent,
		Defaults: rules.Defaults, Facts: *e.facts.Load(),
		RaisedOOMScore: e.scores.Fit(ctx, oomscore.Containers, int(spec.Config.GetLinux().GetResources().GetOomScoreAdj())),
	}
	if in.Seccomp, err = e.seccomp.Container(ctx, spec.Config, &rules.Seccomp, &rules.Defaults); err != nil {
		return nil, err
	}
	if in.AppArmor, err = e.appArmorProfile(ctx, request.AppArmorOf(spec.Config)); err != nil {
		return nil, err
	}
	if spec.TargetID != "" {
		target, err := e.objects.find(ctx, spec.TargetID)
		if err != nil {
			return nil, err
		}
		in.TargetID = target.engineID
	}
	return in, nil
}

// containerDir holds what the engine notes of a container.
func (e *Engine) containerDir(id string) string { return filepath.Join(e.containersDir(), id) }

func (e *Engine) logOf(id, engineID, path string, tty bool) logs.Container {
	return logs.Container{ID: id, EngineID: engineID, Path: path, TTY: tty, Dir: e.containerDir(id)}
}

// Remove kills the container and removes it. Its log file stays.
func (e *Engine) Remove(ctx context.Context, id string) error {
	e.logs.Forget(id)
	if err := e.removeObject(ctx, id); err != nil {
		return err
	}
	e.meter.Forget(id)
	e.unstarted.Forget(id)
	if err := e.madeSources(id).Remove(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(e.containerDir(id)); err != nil {
		return fmt.Errorf("cannot remove the container's directory: %w", err)
	}
	return nil
}

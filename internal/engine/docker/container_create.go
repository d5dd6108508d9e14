package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/logs"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/engine/hostpath"
	"github.com/berthrun/berth/internal/engine/podfiles"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// CheckContainer implements engine.Engine.
func (e *Engine) CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	return translate.CheckContainer(config, sandbox, *e.facts.Load())
}

// CheckResources implements engine.Engine.
func (e *Engine) CheckResources(field string, limits *runtimeapi.LinuxContainerResources) error {
	return translate.CheckResources(field, limits, *e.facts.Load())
}

// Create creates a container in the Docker Engine. That starts no process: a program that
// cannot be executed is found by Start.
func (e *Engine) Create(ctx context.Context, spec *engine.ContainerSpec) (*engine.Container, error) {
	in, err := e.inputOf(ctx, spec)
	if err != nil {
		return nil, err
	}
	options, err := translate.Container(*in)
	if err != nil {
		return nil, err
	}
	if err := e.prepareFiles(ctx, spec); err != nil {
		return nil, err
	}
	engineID, err := e.createContainer(ctx, options)
	if err != nil {
		return nil, err
	}
	e.objects.put(spec.ID, object{engineID: engineID, tty: spec.Config.GetTty()})
	log := e.logOf(spec.ID, engineID, spec.LogPath, spec.Config.GetTty())
	log.Root = spec.SandboxSpec.Config.GetLogDirectory()
	if err := e.logs.Begin(ctx, log); err != nil {
		return nil, err
	}
	return &engine.Container{}, e.madeSources(spec.ID).Keep()
}

// prepareFiles makes the container's own directory, that of its log, and directories in the
// place of missing mount sources, which the Docker Engine would refuse.
func (e *Engine) prepareFiles(ctx context.Context, spec *engine.ContainerSpec) error {
	if err := os.MkdirAll(e.containerDir(spec.ID), 0o700); err != nil {
		return fmt.Errorf("cannot make the container's directory: %w", err)
	}
	find := hostpath.Finder{Probes: e.probes, Rejected: e.rules().AbsentSources}
	_, missing, err := find.Find(ctx, spec.Config.GetMounts(), "")
	if err != nil {
		return err
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
	return hostpath.Made{Probes: e.probes, File: filepath.Join(e.containerDir(id), "made")}
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
		Defaults: rules.Defaults, Devices: rules.Devices, Facts: *e.facts.Load(),
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
	e.unstarted.forget(id)
	if err := e.madeSources(id).Remove(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(e.containerDir(id)); err != nil {
		return fmt.Errorf("cannot remove the container's directory: %w", err)
	}
	return nil
}

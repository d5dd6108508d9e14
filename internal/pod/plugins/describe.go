package plugins

import (
	"context"
	"maps"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nri/convert"
	"github.com/berthrun/berth/internal/pod/record"
)

// pod describes a sandbox.
func (p *Plugins) pod(rec *record.Sandbox) *api.PodSandbox {
	config := rec.Config.Get()
	limits := rec.CurrentResources()
	pod := &api.PodSandbox{
		Id:             rec.ID,
		Name:           config.GetMetadata().GetName(),
		Uid:            config.GetMetadata().GetUid(),
		Namespace:      config.GetMetadata().GetNamespace(),
		Labels:         maps.Clone(config.GetLabels()),
		Annotations:    maps.Clone(config.GetAnnotations()),
		RuntimeHandler: rec.Handler,
		Linux: &api.LinuxPodSandbox{
			PodOverhead:  convert.Resources(limits.Overhead.Get()),
			PodResources: convert.Resources(limits.Resources.Get()),
			CgroupParent: config.GetLinux().GetCgroupParent(),
		},
	}
	if rec.Network != nil {
		for _, ip := range rec.Network.IPs {
			pod.Ips = append(pod.Ips, ip.String())
		}
	}
	if rec.Engine == nil {
		return pod
	}
	pod.Pid = uint32(rec.Engine.Pid)
	if pod.Linux.CgroupParent == "" {
		pod.Linux.CgroupParent = rec.Engine.CgroupParent
	}
	for _, ns := range rec.EngineView(p.engine).Namespaces {
		pod.Linux.Namespaces = append(pod.Linux.Namespaces, &api.LinuxNamespace{Type: ns.Type, Path: ns.Path})
	}
	return pod
}

// podOf describes the sandbox of a container, as far as it is known.
func (p *Plugins) podOf(rec *record.Container) *api.PodSandbox {
	sandbox, err := p.records.Sandboxes.Get(rec.SandboxID)
	if err != nil {
		return &api.PodSandbox{Id: rec.SandboxID}
	}
	return p.pod(sandbox)
}

// container describes a container that exists.
func (p *Plugins) container(rec *record.Container) *api.Container {
	reader, ok := p.engine.(engine.SpecReader)
	if !ok {
		return p.describe(rec, nil)
	}
	spec, err := reader.ContainerSpec(context.Background(), rec.ID, rec.Resources.Get())
	if errs.IgnoreNotFound(err) != nil {
		p.log.Warn("cannot read a container's spec for NRI plugins", "container", rec.ID, "error", err)
	}
	return p.describe(rec, spec)
}

// describe describes a container with a spec, which is nil when it is not known.
func (p *Plugins) describe(rec *record.Container, spec *specs.Spec) *api.Container {
	c := convert.Container(rec.Config.Get(), spec)
	c.Id, c.PodSandboxId = rec.ID, rec.SandboxID
	c.State = stateOf(rec.State)
	c.Pid = uint32(rec.Pid)
	c.CreatedAt, c.StartedAt, c.FinishedAt = rec.CreatedAt, rec.StartedAt, rec.FinishedAt
	c.ExitCode, c.StatusReason, c.StatusMessage = rec.ExitCode, rec.Reason, rec.Message
	c.Image = &api.Image{Name: rec.Image.Name, ConfigDigest: rec.Image.ID}
	if rec.Image.Ref != rec.Image.ID {
		c.Image.Digest = digestOf(rec.Image.Ref)
	}
	if c.Image.Name == "" {
		c.Image.Name = rec.Image.Ref
	}
	return c
}

func stateOf(state record.ContainerState) api.ContainerState {
	switch state {
	case record.ContainerCreated, record.ContainerStarting:
		return api.ContainerState_CONTAINER_CREATED
	case record.ContainerRunning:
		return api.ContainerState_CONTAINER_RUNNING
	case record.ContainerExited:
		return api.ContainerState_CONTAINER_STOPPED
	case record.ContainerCreating:
	}
	return api.ContainerState_CONTAINER_UNKNOWN
}

// digestOf is the digest of a reference by digest.
func digestOf(ref string) string {
	_, digest, _ := strings.Cut(ref, "@")
	return digest
}

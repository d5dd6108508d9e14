package docker

import (
	"context"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// pauseContainer is this engine's own part of a sandbox. It is part of the sandbox's record.
type pauseContainer struct {
	// EngineID is the Docker Engine's id of the pause container.
	EngineID string `json:"dockerID,omitempty"`
}

// ownCgroupFile records a cgroup parent that the engine made, in the sandbox's directory.
const ownCgroupFile = "own-cgroup"

// sandboxPaths are the places of one sandbox on the host.
type sandboxPaths struct {
	// dir is in the state directory, netns in the host's directory of network namespaces.
	dir, netns string
	ownCgroup  string
}

func (e *Engine) sandboxPaths(id string) sandboxPaths {
	dir := filepath.Join(e.sandboxesDir(), id)
	return sandboxPaths{
		dir:       dir,
		netns:     filepath.Join(e.cfg.NetNSDir, e.netnsPrefix()+id),
		ownCgroup: filepath.Join(dir, ownCgroupFile),
	}
}

func (e *Engine) netnsPrefix() string { return "berth-" + e.cfg.Instance + "-" }

// CheckSandbox implements engine.Engine.
func (e *Engine) CheckSandbox(config *runtimeapi.PodSandboxConfig) error {
	return translate.CheckSandbox(config, *e.facts.Load())
}

// ReleasedSandbox implements engine.Engine. It drops the path of the network namespace, as
// another namespace may be pinned there later.
func (e *Engine) ReleasedSandbox(sb *engine.Sandbox) *engine.Sandbox {
	return &engine.Sandbox{CgroupParent: sb.CgroupParent, Backend: sb.Backend}
}

// ViewSandbox implements engine.Engine.
func (e *Engine) ViewSandbox(sb *engine.Sandbox) engine.SandboxView {
	var view engine.SandboxView
	if sb.NetNS != "" {
		view.Namespaces = append(view.Namespaces, engine.Namespace{Type: "network", Path: sb.NetNS})
	}
	return view
}

// UpdateSandbox implements engine.Engine.
func (e *Engine) UpdateSandbox(ctx context.Context, sb *engine.Sandbox, res *runtimeapi.LinuxContainerResources) error {
	return e.podCgroups.Limit(ctx, sb.CgroupParent, request.FieldUpdateSandbox, res, e.host)
}

// limitOwnCgroup limits the cgroup of a sandbox whose request names none. The kubelet limits
// the cgroups that requests name.
func (e *Engine) limitOwnCgroup(ctx context.Context, spec *engine.SandboxSpec, parent string) error {
	res := spec.Config.GetLinux().GetResources()
	if res == nil || spec.Config.GetLinux().GetCgroupParent() != "" {
		return nil
	}
	return e.podCgroups.Limit(ctx, parent, request.FieldCreate, res, e.host)
}

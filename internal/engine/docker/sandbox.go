package docker

import (
	"context"
	"fmt"
	"os"
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
	// SharesPIDs is true if the containers are in its PID namespace.
	SharesPIDs bool `json:"sharesPIDs,omitempty"`
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
	view.Namespaces = append(view.Namespaces, e.pauseNamespaces(sb)...)
	return view
}

// pauseNamespaces are those of the pause container beside that of the network: none of the host's, and
// none after its end.
func (e *Engine) pauseNamespaces(sb *engine.Sandbox) []engine.Namespace {
	var pause pauseContainer
	if err := sb.DecodeBackend(&pause); err != nil {
		e.log.Error("cannot read a sandbox's record", "error", err)
		return nil
	}
	if _, err := e.objects.tree.OfContainer(sb.Pid, pause.EngineID); err != nil {
		return nil // the process has ended, or another one has its pid
	}
	kinds := []string{"ipc"} // each container has a UTS namespace of its own, with the same name in it
	if pause.SharesPIDs {
		kinds = append(kinds, "pid")
	}
	var own []engine.Namespace
	for _, kind := range kinds {
		path := fmt.Sprintf("/proc/%d/ns/%s", sb.Pid, kind)
		of, err := os.Stat(path)
		host, hostErr := os.Stat("/proc/self/ns/" + kind) // berth's own are the host's
		if err == nil && hostErr == nil && !os.SameFile(of, host) {
			own = append(own, engine.Namespace{Type: kind, Path: path})
		}
	}
	return own
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

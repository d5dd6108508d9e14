package native

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// sandbox is an engine.Sandbox with this engine's own part.
type sandbox struct {
	engine.Sandbox
	pinned
}

// pinned is this engine's own part of a sandbox. It is part of the sandbox's record.
type pinned struct {
	// UserNS is the path of the pinned user namespace that owns the others, "" for
	// the host's.
	UserNS string `json:"userns,omitempty"`
	// IPCNS, UTSNS and PIDNS are paths of pinned namespaces, "" where the
	// host's (or, for PIDNS, each container's own) is used.
	IPCNS string `json:"ipcns,omitempty"`
	UTSNS string `json:"utsns,omitempty"`
	PIDNS string `json:"pidns,omitempty"`
	// PodInit is podInitSealed, or 0 where the sandbox has no process of its own, or one
	// that an earlier berth made.
	PodInit int `json:"podInit,omitempty"`
	// ProcessLabel and MountLabel are the SELinux labels of the sandbox's containers
	// and of their files, "" where there are none.
	ProcessLabel string `json:"processLabel,omitempty"`
	MountLabel   string `json:"mountLabel,omitempty"`
	// Handler runs the containers; nil, in records of an earlier berth, is berth itself.
	Handler *handler.Handler `json:"handler,omitempty"`
}

// podInitSealed is a sandbox's process that containers cannot use to reach the host, see
// startPodInit. Containers of a pod with an older process may.
const podInitSealed = 1

// sandboxOf reads what CreateSandbox returned.
func sandboxOf(sb *engine.Sandbox) (*sandbox, error) {
	read := &sandbox{Sandbox: *sb}
	return read, sb.DecodeBackend(&read.pinned)
}

// record is what CreateSandbox returns.
func (sb *sandbox) record() (*engine.Sandbox, error) {
	own, err := engine.EncodeBackend(sb.pinned)
	if err != nil {
		return nil, err
	}
	sb.Backend = own
	return &sb.Sandbox, nil
}

// ReleasedSandbox implements engine.Engine. It drops the paths of the namespaces, as another
// namespace may be pinned there later.
func (e *Engine) ReleasedSandbox(sb *engine.Sandbox) *engine.Sandbox {
	left := &sandbox{Sandbox: engine.Sandbox{CgroupParent: sb.CgroupParent}}
	if read, err := sandboxOf(sb); err == nil {
		left.ProcessLabel, left.MountLabel = read.ProcessLabel, read.MountLabel
	}
	released, err := left.record()
	if err != nil {
		return &left.Sandbox
	}
	return released
}

// ViewSandbox implements engine.Engine.
func (e *Engine) ViewSandbox(sb *engine.Sandbox) engine.SandboxView {
	var view engine.SandboxView
	read, err := sandboxOf(sb)
	if err != nil {
		e.log.Error("cannot read a sandbox's record", "error", err)
	}
	for _, ns := range []engine.Namespace{
		{Type: "network", Path: read.NetNS},
		{Type: "ipc", Path: read.IPCNS},
		{Type: "uts", Path: read.UTSNS},
		{Type: "pid", Path: read.PIDNS},
		{Type: "user", Path: read.UserNS},
	} {
		if ns.Path != "" {
			view.Namespaces = append(view.Namespaces, ns)
		}
	}
	if read.Pid != 0 && read.PodInit < podInitSealed {
		view.Unsafe = "shares its PID namespace and was made by an earlier berth: its containers can reach the host through its init"
	}
	return view
}

// containerSpec is an engine.ContainerSpec whose sandbox is read.
type containerSpec struct {
	*engine.ContainerSpec
	// Sandbox replaces ContainerSpec.Sandbox.
	Sandbox *sandbox
}

// UpdateSandbox implements engine.Engine.
func (e *Engine) UpdateSandbox(ctx context.Context, sb *engine.Sandbox, res *runtimeapi.LinuxContainerResources) error {
	return e.podCgroups.Limit(ctx, sb.CgroupParent, request.FieldUpdateSandbox, res, e.host)
}

// limitOwnCgroup limits the cgroup of a sandbox whose request names none. The kubelet limits
// the cgroups that requests name.
func (e *Engine) limitOwnCgroup(ctx context.Context, spec *engine.SandboxSpec, sb *engine.Sandbox) error {
	res := spec.Config.GetLinux().GetResources()
	if res == nil || spec.Config.GetLinux().GetCgroupParent() != "" {
		return nil
	}
	return e.podCgroups.Limit(ctx, sb.CgroupParent, request.FieldCreate, res, e.host)
}

// CheckSandbox implements engine.Engine: this engine honours what an OCI spec can express.
func (e *Engine) CheckSandbox(config *runtimeapi.PodSandboxConfig) error {
	return check.Sandbox(config)
}

// MakePlaceholder implements engine.Placeholders.
func (e *Engine) MakePlaceholder(_ context.Context, ref engine.SandboxRef, pid int) error {
	if ref.Sandbox.Pid != 0 {
		return nil // its own process has a cgroup of that name
	}
	return e.podCgroups.MakePlaceholder(ref.Spec.ID, ref.Sandbox.CgroupParent, pid, e.sandboxPaths(ref.Spec.ID).placeholder)
}

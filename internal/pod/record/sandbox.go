package record

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/store"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SandboxState is where a sandbox is in its life.
//
//	            last step done            Stop, Remove, its
//	            (published)               namespaces are gone            every step done
//	creating ───────────────────▶ ready ───────────────────▶ stopping ───────────────────▶ stopped
//	   │                            │                           │                            │
//	   │ teardown failed            │ Remove                    │ Remove                     │ Remove
//	   ▼                            ▼                           ▼                            ▼
//	removing ◀────────────────── removing ─────────────────────────────────────────────▶ (no record)
//
// A sandbox that is restored from a checkpoint is restoring between creating and ready, while its containers are
// created. It is hidden, and its failure is torn down, as that of a creating one.
//
// A creating sandbox is hidden; its failed creation is torn down while it still
// is creating, and only when that fails does it show, as removing. ready lists
// as READY, all others as NOTREADY. stopping and removing are intents: jobs
// work on them until they are reached, also those of the next daemon. A stopped one has a record,
// files and exited containers; addresses, namespaces, mounts and cgroup are gone.
type SandboxState string

// The states of a sandbox.
const (
	SandboxCreating  SandboxState = "creating"
	SandboxRestoring SandboxState = "restoring"
	SandboxReady     SandboxState = "ready"
	SandboxStopping  SandboxState = "stopping"
	SandboxStopped   SandboxState = "stopped"
	SandboxRemoving  SandboxState = "removing"
)

// Sandbox is the record of a sandbox. It exists before the first of the sandbox's
// resources and is removed after the last. Only store.Dir.Update changes it.
type Sandbox struct {
	ID string `json:"id"`
	// Boot is the boot of the machine in which the sandbox was made.
	Boot    string                                      `json:"boot"`
	State   SandboxState                                `json:"state"`
	Config  store.Message[*runtimeapi.PodSandboxConfig] `json:"config"`
	Handler string                                      `json:"handler,omitempty"`
	// Platform is that of the images of its containers, "" for the node's; see image.ParsePlatform.
	Platform string `json:"platform,omitempty"`
	// CreatedAt is in nanoseconds since 1970, as in CRI.
	CreatedAt int64 `json:"createdAt"`
	// Engine and Network are known once the sandbox is ready.
	Engine  *engine.Sandbox `json:"engine,omitempty"`
	Network *network.Result `json:"network,omitempty"`
	// Resources are set once the limits were updated.
	Resources *SandboxResources `json:"resources,omitempty"`
	// RestoredFrom is the directory of the checkpoint from which RestorePod has restored the sandbox, "" for none.
	RestoredFrom string `json:"restoredFrom,omitempty"`
	// Adoption is "" for a sandbox that berth made.
	Adoption Adoption `json:"adoption,omitempty"`
	// PluginsStopped is true once NRI plugins were told that the sandbox is stopped.
	PluginsStopped bool `json:"pluginsStopped,omitempty"`
	// Message says why the sandbox is not ready.
	Message string `json:"message,omitempty"`
}

// Adoption is how far berth has taken over a sandbox that another runtime made. The record is
// written first, so an adoption that was interrupted is repeated.
type Adoption string

// The stages of an adoption.
const (
	AdoptionBegun Adoption = "begun"
	AdoptionDone  Adoption = "done"
)

// SandboxResources are the limits of a sandbox that was updated.
type SandboxResources struct {
	// Overhead is the part of Resources that the pod uses beyond its containers.
	Overhead  store.Message[*runtimeapi.LinuxContainerResources] `json:"overhead"`
	Resources store.Message[*runtimeapi.LinuxContainerResources] `json:"resources"`
}

// RecordID is the id under which the record is kept.
func (r *Sandbox) RecordID() string { return r.ID }

// Validate reports whether a record from disk can be used.
func (r *Sandbox) Validate() error {
	if r.ID == "" || r.Config.Get() == nil || r.Config.Get().GetMetadata() == nil {
		return errors.New("id, config or metadata is missing")
	}
	switch r.State {
	case SandboxCreating, SandboxRestoring, SandboxReady, SandboxStopping, SandboxStopped, SandboxRemoving:
		return nil
	}
	return fmt.Errorf("state %q is unknown", r.State)
}

// Visible reports whether clients may see the sandbox.
func (r *Sandbox) Visible() bool { return r.State != SandboxCreating && r.State != SandboxRestoring }

// Name is the key of the sandbox's jobs and its name in CRI: the retry of a request has the
// same, attempt + 1 has another.
func (r *Sandbox) Name() string {
	m := r.Config.Get().GetMetadata()
	return fmt.Sprintf("%s/%s/%s/%d", url.PathEscape(m.GetNamespace()), url.PathEscape(m.GetName()), url.PathEscape(m.GetUid()), m.GetAttempt())
}

// Request is the request that made the sandbox, for a comparison with a retry. It leaves
// out what a kubelet changes in each request: a kubelet stamps a pod when it first sees it,
// so a restarted kubelet uses another stamp.
func (r *Sandbox) Request() *runtimeapi.RunPodSandboxRequest {
	config := proto.CloneOf(r.Config.Get())
	delete(config.GetAnnotations(), "kubernetes.io/config.seen")
	return &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: r.Handler}
}

// SameRequest returns the requests that are compared to find out whether a sandbox of the same name is
// the one that is requested: its own and the new one. Of the request that made an adopted sandbox
// only a part is known, and both requests are limited to that.
func (r *Sandbox) SameRequest(requested *Sandbox) (own, other *runtimeapi.RunPodSandboxRequest) {
	own, other = r.Request(), requested.Request()
	if r.Adoption != "" {
		own.Config, other.Config = shownByPause(own.GetConfig()), shownByPause(other.GetConfig())
	}
	return own, other
}

// shownByPause is the part of a request that the pause container of dockershim and cri-dockerd shows. It
// does not show which of CONTAINER and POD the PID namespace was: the pause container is the same.
func shownByPause(config *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandboxConfig {
	linux := config.GetLinux()
	security := linux.GetSecurityContext()
	namespaces := &runtimeapi.NamespaceOption{
		Network: security.GetNamespaceOptions().GetNetwork(), Ipc: security.GetNamespaceOptions().GetIpc(),
	}
	if security.GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_NODE {
		namespaces.Pid = runtimeapi.NamespaceMode_NODE
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: linux.GetCgroupParent(), Sysctls: linux.GetSysctls(),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Privileged: security.GetPrivileged(), NamespaceOptions: namespaces},
		},
	}
}

// prior orders sandboxes of one name: the one that is ready keeps it, and of several the newest.
func (r *Sandbox) prior(other *Sandbox) int {
	return cmp.Or(cmp.Compare(other.Rank(), r.Rank()), cmp.Compare(other.CreatedAt, r.CreatedAt), cmp.Compare(other.ID, r.ID))
}

// Rank orders sandboxes of one name: the higher one keeps the name. 0 is one that is being
// made or removed.
func (r *Sandbox) Rank() int {
	switch r.State {
	case SandboxReady:
		return 2
	case SandboxStopping, SandboxStopped:
		return 1
	case SandboxCreating, SandboxRestoring, SandboxRemoving:
	}
	return 0
}

// CurrentResources are the sandbox's limits as they are now.
func (r *Sandbox) CurrentResources() *SandboxResources {
	if r.Resources != nil {
		return r.Resources
	}
	linux := r.Config.Get().GetLinux()
	return &SandboxResources{Overhead: store.MessageOf(linux.GetOverhead()), Resources: store.MessageOf(linux.GetResources())}
}

package pod

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

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
// A creating sandbox is hidden; its failed creation is torn down while it still
// is creating, and only when that fails does it show, as removing. ready lists
// as READY, all others as NOTREADY. stopping and removing are intents: they are
// pursued until they are reached, also by the next daemon. A stopped one has a record,
// files and exited containers; addresses, namespaces, mounts and cgroup are gone.
type SandboxState string

// The states of a sandbox.
const (
	SandboxCreating SandboxState = "creating"
	SandboxReady    SandboxState = "ready"
	SandboxStopping SandboxState = "stopping"
	SandboxStopped  SandboxState = "stopped"
	SandboxRemoving SandboxState = "removing"
)

// SandboxRecord is what berth knows of a sandbox. It exists before the first of
// the sandbox's resources and goes after the last. It is changed by
// store.Dir.Update only.
type SandboxRecord struct {
	ID string `json:"id"`
	// Boot is the boot of the machine in which the sandbox was made.
	Boot    string                                      `json:"boot"`
	State   SandboxState                                `json:"state"`
	Config  store.Message[*runtimeapi.PodSandboxConfig] `json:"config"`
	Handler string                                      `json:"handler,omitempty"`
	// CreatedAt is in nanoseconds since 1970, as in CRI.
	CreatedAt int64 `json:"createdAt"`
	// Engine and Network are known once the sandbox is ready.
	Engine  *engine.Sandbox `json:"engine,omitempty"`
	Network *network.Result `json:"network,omitempty"`
	// Resources are set once the limits were updated.
	Resources *SandboxResources `json:"resources,omitempty"`
	// Message tells people why the sandbox is not ready.
	Message string `json:"message,omitempty"`
}

// SandboxResources are the limits of a sandbox that was updated.
type SandboxResources struct {
	// Overhead is what the pod costs beyond its containers; it is part of
	// Resources.
	Overhead  store.Message[*runtimeapi.LinuxContainerResources] `json:"overhead"`
	Resources store.Message[*runtimeapi.LinuxContainerResources] `json:"resources"`
}

// RecordID is the id under which the record is kept.
func (r *SandboxRecord) RecordID() string { return r.ID }

// Validate reports whether a record that was read can be worked with.
func (r *SandboxRecord) Validate() error {
	if r.ID == "" || r.Config.Get() == nil || r.Config.Get().GetMetadata() == nil {
		return errors.New("id, config or metadata is missing")
	}
	switch r.State {
	case SandboxCreating, SandboxReady, SandboxStopping, SandboxStopped, SandboxRemoving:
		return nil
	}
	return fmt.Errorf("state %q is unknown", r.State)
}

func (r *SandboxRecord) visible() bool { return r.State != SandboxCreating }

func (r *SandboxRecord) name() string { return sandboxName(r.Config.Get().GetMetadata()) }

// request is what tells a retry from another request: what was asked for, but for what a
// kubelet says anew each time it asks. A kubelet's process stamps a pod when it sees it
// first, so one that was restarted has another stamp.
func (r *SandboxRecord) request() *runtimeapi.RunPodSandboxRequest {
	config := proto.CloneOf(r.Config.Get())
	delete(config.GetAnnotations(), "kubernetes.io/config.seen")
	return &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: r.Handler}
}

// ContainerState is where a container is in its life.
//
//	          last step          Start           the program
//	          (published)        asked           runs                 its exit
//	creating ───────────▶ created ────▶ starting ────▶ running ───────────────▶ exited
//	   │                     │             │                                      ▲
//	   │ teardown failed     │ lost        │ start failed (128, StartError)       │
//	   └─────────────────────┴─────────────┴──────────────────────────────────────┘
//
// A creating container is hidden; created and starting list as CREATED. The
// intents to stop and to remove lie beside the state (Stop, Removing), since a
// container that is asked to go still runs until it has gone.
type ContainerState string

// The states of a container.
const (
	ContainerCreating ContainerState = "creating"
	ContainerCreated  ContainerState = "created"
	ContainerStarting ContainerState = "starting"
	ContainerRunning  ContainerState = "running"
	ContainerExited   ContainerState = "exited"
)

// The reasons of an exit that has a code, as the kubelet and people know them. Those of
// other exits are the engine's.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
	reasonOOMKilled = "OOMKilled"
)

// ContainerRecord is what berth knows of a container; see SandboxRecord.
type ContainerRecord struct {
	ID        string                                     `json:"id"`
	SandboxID string                                     `json:"sandboxID"`
	Boot      string                                     `json:"boot"`
	State     ContainerState                             `json:"state"`
	Config    store.Message[*runtimeapi.ContainerConfig] `json:"config"`
	Image     ImageSnapshot                              `json:"image"`
	// Engine is known once the container is created.
	Engine *engine.Container `json:"engine,omitempty"`
	// Resources are set once the limits were updated.
	Resources store.Message[*runtimeapi.LinuxContainerResources] `json:"resources,omitzero"`
	// VolumeImages are the ids of the images that Config mounts, by the mount's
	// index.
	VolumeImages map[int]string `json:"volumeImages,omitempty"`
	// VolumeRefs are the same as ImageSnapshot.Ref has them. Records of an older berth have
	// none.
	VolumeRefs map[int]string `json:"volumeRefs,omitempty"`
	// LogPath is absolute, "" for none.
	LogPath string `json:"logPath,omitempty"`
	// The times are in nanoseconds since 1970, as in CRI; 0 for not yet.
	CreatedAt  int64 `json:"createdAt"`
	StartedAt  int64 `json:"startedAt,omitempty"`
	FinishedAt int64 `json:"finishedAt,omitempty"`
	Pid        int   `json:"pid,omitempty"`

	ExitCode int32  `json:"exitCode,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`

	// Stop is set while the container is asked to stop.
	Stop *StopIntent `json:"stop,omitempty"`
	// Removing is set once the container is asked to go for good.
	Removing bool `json:"removing,omitempty"`
}

// ImageSnapshot is what a container's image was when the container was created.
type ImageSnapshot struct {
	// ID is the store's id; Ref is its reference by digest, or the id when it
	// has none.
	ID  string `json:"id"`
	Ref string `json:"ref"`
	// Name is its first tag, "" when it has none.
	Name string `json:"name,omitempty"`
	// StopSignal is the image's, "" for none.
	StopSignal string `json:"stopSignal,omitempty"`
}

// StopIntent says by when a container gets SIGKILL.
type StopIntent struct {
	By time.Time `json:"by"`
	// Timeout is what was asked for; the rest of it never exceeds it, whatever
	// the clock does.
	Timeout time.Duration `json:"timeout"`
	// Signalled is set once the stop signal was sent.
	Signalled bool `json:"signalled,omitempty"`
}

// left is what is left of the patience.
func (s *StopIntent) left() time.Duration {
	return min(max(time.Until(s.By), 0), s.Timeout)
}

// RecordID is the id under which the record is kept.
func (r *ContainerRecord) RecordID() string { return r.ID }

// Validate reports whether a record that was read can be worked with.
func (r *ContainerRecord) Validate() error {
	if r.ID == "" || r.SandboxID == "" || r.Config.Get() == nil || r.Config.Get().GetMetadata() == nil {
		return errors.New("id, sandbox, config or metadata is missing")
	}
	switch r.State {
	case ContainerCreating, ContainerCreated, ContainerStarting, ContainerRunning, ContainerExited:
		return nil
	}
	return fmt.Errorf("state %q is unknown", r.State)
}

func (r *ContainerRecord) visible() bool { return r.State != ContainerCreating }

// alive reports whether processes of the container may run.
func (r *ContainerRecord) alive() bool {
	return r.State == ContainerStarting || r.State == ContainerRunning
}

func (r *ContainerRecord) name() string {
	return containerName(r.SandboxID, r.Config.Get().GetMetadata())
}

// request is as a sandbox's is. A kubelet draws the name of the file for last words each
// time it asks (and reads it where the container's status says that it is), and tells
// the environment in the order of a map.
func (r *ContainerRecord) request() *runtimeapi.CreateContainerRequest {
	config := proto.CloneOf(r.Config.Get())
	slices.SortStableFunc(config.GetEnvs(), func(a, b *runtimeapi.KeyValue) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
	lastWords := config.GetAnnotations()["io.kubernetes.container.terminationMessagePath"]
	for _, m := range config.GetMounts() {
		if lastWords != "" && m.GetContainerPath() == lastWords {
			m.HostPath = ""
		}
	}
	return &runtimeapi.CreateContainerRequest{PodSandboxId: r.SandboxID, Config: config}
}

// exit makes the record an exited one. The caller has made sure that it is not
// yet.
func (r *ContainerRecord) exit(at time.Time, code int32, reason, message string) {
	r.State, r.Pid = ContainerExited, 0
	r.FinishedAt, r.ExitCode = max(at.UnixNano(), r.StartedAt, 1), code
	r.Reason, r.Message = reason, message
	r.Stop = nil
}

// The events of sandboxes and containers, as CRI has them.
const (
	eventCreated = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	eventStarted = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	eventStopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
	eventDeleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

// sandboxEvents are the events that a change of a record means: old is nil for a
// new record, new for one that is gone. Half-made things mean none.
func sandboxEvents(old, new *SandboxRecord) []runtimeapi.ContainerEventType {
	was, is := old != nil && old.visible(), new != nil && new.visible()
	switch {
	case !was && !is:
		return nil
	case !is:
		return []runtimeapi.ContainerEventType{eventDeleted}
	case !was && new.State == SandboxReady:
		return []runtimeapi.ContainerEventType{eventCreated, eventStarted}
	case !was:
		return []runtimeapi.ContainerEventType{eventCreated, eventStopped}
	case old.State == SandboxReady && new.State != SandboxReady:
		return []runtimeapi.ContainerEventType{eventStopped}
	}
	return nil
}

// containerEvents is the same for containers. A container of which nobody saw that
// it ran, and that ended by itself, was started all the same.
func containerEvents(old, new *ContainerRecord) []runtimeapi.ContainerEventType {
	was, is := old != nil && old.visible(), new != nil && new.visible()
	var all []runtimeapi.ContainerEventType
	switch {
	case !was && !is:
		return nil
	case !is:
		return []runtimeapi.ContainerEventType{eventDeleted}
	case !was:
		all = append(all, eventCreated)
	case old.State == new.State:
		return nil
	}
	switch {
	case new.State == ContainerRunning:
		all = append(all, eventStarted)
	case new.State == ContainerExited && was && old.State == ContainerStarting && new.Reason != engine.ReasonStartError:
		all = append(all, eventStarted, eventStopped)
	case new.State == ContainerExited:
		all = append(all, eventStopped)
	}
	return all
}

// sandboxName is the key of a sandbox's jobs and its name in CRI: the retry of a
// request has the same, attempt + 1 has another.
func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s/%s/%s/%d", url.PathEscape(m.GetNamespace()), url.PathEscape(m.GetName()), url.PathEscape(m.GetUid()), m.GetAttempt())
}

// containerName is the same for a container.
func containerName(sandboxID string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("%s/%s/%d", sandboxID, url.PathEscape(m.GetName()), m.GetAttempt())
}

package record

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/store"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
// container that is to be removed still runs until it has exited.
type ContainerState string

// The states of a container.
const (
	ContainerCreating ContainerState = "creating"
	ContainerCreated  ContainerState = "created"
	ContainerStarting ContainerState = "starting"
	ContainerRunning  ContainerState = "running"
	ContainerExited   ContainerState = "exited"
)

// Container is the record of a container; see Sandbox.
type Container struct {
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

	// Stop is set while the container is stopping.
	Stop *StopIntent `json:"stop,omitempty"`
	// Adopted is true for a container that another runtime made.
	Adopted bool `json:"adopted,omitempty"`
	// Undecided is true of a container whose start an earlier berth began, until the engine reports whether that has
	// started it. Its State is ContainerStarting.
	Undecided bool `json:"undecided,omitempty"`
	// Removing is set once the removal of the container was requested.
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

// SnapshotOf returns what a record keeps of an image.
func SnapshotOf(img *image.Image) ImageSnapshot {
	snap := ImageSnapshot{ID: img.ID, Ref: img.ID, StopSignal: img.Config.StopSignal}
	if len(img.Digests) > 0 {
		snap.Ref = img.Digests[0]
	}
	if len(img.Tags) > 0 {
		snap.Name = img.Tags[0]
	}
	return snap
}

// StopIntent is the time by which a container gets SIGKILL.
type StopIntent struct {
	By time.Time `json:"by"`
	// Timeout is what was asked for; the rest of it never exceeds it, whatever
	// the clock does.
	Timeout time.Duration `json:"timeout"`
	// Signalled is set once the stop signal was sent.
	Signalled bool `json:"signalled,omitempty"`
}

// Left is how much of the grace period is left, at most Timeout.
func (s *StopIntent) Left() time.Duration {
	return min(max(time.Until(s.By), 0), s.Timeout)
}

// RecordID is the id under which the record is kept.
func (r *Container) RecordID() string { return r.ID }

// Validate reports whether a record from disk can be used.
func (r *Container) Validate() error {
	if r.ID == "" || r.SandboxID == "" || r.Config.Get() == nil || r.Config.Get().GetMetadata() == nil {
		return errors.New("id, sandbox, config or metadata is missing")
	}
	switch r.State {
	case ContainerCreating, ContainerCreated, ContainerStarting, ContainerRunning, ContainerExited:
		return nil
	}
	return fmt.Errorf("state %q is unknown", r.State)
}

func (r *Container) hasExited() bool { return r.State == ContainerExited }

// Visible reports whether clients may see the container.
func (r *Container) Visible() bool { return r.State != ContainerCreating }

// Alive reports whether processes of the container may run.
func (r *Container) Alive() bool {
	return r.State == ContainerStarting || r.State == ContainerRunning
}

// Name is the key of the container's jobs and its name in CRI: the retry of a request has
// the same, attempt + 1 has another.
func (r *Container) Name() string {
	m := r.Config.Get().GetMetadata()
	return fmt.Sprintf("%s/%s/%d", r.SandboxID, url.PathEscape(m.GetName()), m.GetAttempt())
}

// Request is the request that made the container, for a comparison with a retry; see
// Sandbox.Request. A kubelet chooses a new path for the termination message each time it
// asks, and reads the one that the container's status has. It lists the environment in the
// order of a map. Neither makes another request.
func (r *Container) Request() *runtimeapi.CreateContainerRequest {
	config := proto.CloneOf(r.Config.Get())
	slices.SortStableFunc(config.GetEnvs(), func(a, b *runtimeapi.KeyValue) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
	terminationMessage := config.GetAnnotations()["io.kubernetes.container.terminationMessagePath"]
	for _, m := range config.GetMounts() {
		if terminationMessage != "" && m.GetContainerPath() == terminationMessage {
			m.HostPath = ""
		}
	}
	return &runtimeapi.CreateContainerRequest{PodSandboxId: r.SandboxID, Config: config}
}

// SetExited makes the record an exited one. The caller has checked that it is not exited
// yet.
func (r *Container) SetExited(at time.Time, code int32, reason, message string) {
	r.State, r.Undecided, r.Pid = ContainerExited, false, 0
	r.FinishedAt, r.ExitCode = max(at.UnixNano(), r.StartedAt, 1), code
	r.Reason, r.Message = reason, message
	r.Stop = nil
}

// sandbox is the group of a container's record.
func (r *Container) sandbox() string { return r.SandboxID }

// prior orders containers of one name: a running one keeps it, else one that can be started,
// and of several the newest.
func (r *Container) prior(other *Container) int {
	return cmp.Or(cmp.Compare(other.Rank(), r.Rank()), cmp.Compare(other.CreatedAt, r.CreatedAt), cmp.Compare(other.ID, r.ID))
}

// Rank orders containers of one name: the higher one keeps the name. 0 is one that is
// being made or removed.
func (r *Container) Rank() int {
	switch {
	case r.Removing || r.State == ContainerCreating:
		return 0
	case r.Alive():
		return 3
	case r.State == ContainerCreated:
		return 2
	}
	return 1
}

// CurrentResources are the container's limits as they are now.
func (r *Container) CurrentResources() *runtimeapi.LinuxContainerResources {
	if updated := r.Resources.Get(); updated != nil {
		return updated
	}
	return r.Config.Get().GetLinux().GetResources()
}

// StartError is why the program cannot be started, when that is known already.
func (r *Container) StartError() string {
	if r.Engine == nil {
		return ""
	}
	return r.Engine.StartError
}

package engine

import (
	"context"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/figures"
)

// Meter is an optional interface of an Engine: it reads all figures of the host, for
// metrics, not only those with fields in CRI's stats.
type Meter interface {
	// Figures reads the figures of sandboxes (their pods' cgroups and networks) and
	// of containers, with Details, by id. What is gone is absent.
	Figures(ctx context.Context, sandboxes []SandboxRef, containers []string) (map[string]*Figures, error)
}

// LogReopener is an optional interface of an Engine: after a log was renamed, it switches
// the container's output to a new file.
type LogReopener interface {
	// ReopenLog opens a new file at the log path of a running container.
	ReopenLog(ctx context.Context, id string) error
}

// Placeholders is an optional interface of an Engine whose sandboxes have no process. Tools
// find a pod by the cgroup of its pause container; a placeholder cgroup takes its place.
type Placeholders interface {
	// MakePlaceholder makes an empty cgroup with the sandbox's id beside the cgroups of its
	// containers. It makes it again when pid, the process that stands for the pod, has
	// changed. A pid of 0 removes it, as StopSandbox does.
	MakePlaceholder(ctx context.Context, sandbox SandboxRef, pid int) error
}

// Inspector is an optional interface of an Engine: it shows people how it runs a container.
type Inspector interface {
	// Inspect returns values by name, fit to be shown as JSON: "runtimeSpec" is the
	// OCI spec with the limits that hold now, "snapshotter" and "snapshotKey" say where
	// its root filesystem is. NotFound when nothing is left of it.
	Inspect(ctx context.Context, spec *InspectSpec) (map[string]any, error)
}

// SpecReader is an optional interface of an Engine that makes containers from OCI specs.
type SpecReader interface {
	// ContainerSpec returns the OCI spec of a container. resources are its limits since they
	// were updated, nil before. NotFound when nothing is left of it.
	ContainerSpec(ctx context.Context, id string, resources *runtimeapi.LinuxContainerResources) (*specs.Spec, error)
}

// Adopter is an optional interface of an Engine: it takes over sandboxes and containers that
// another runtime made, with their ids.
type Adopter interface {
	// Former lists what another runtime made and this engine can take over, also what was taken
	// over before. It changes nothing, and keeps copies of damaged files of that runtime. What cannot
	// be taken over is logged and left out, with its whole pod where it is part of one. Unavailable
	// and Deadline if not all could be read: half a pod must not be taken over.
	Former(ctx context.Context) (*Former, error)
	// AdoptSandbox and AdoptContainer take over an object that the caller has recorded: List,
	// Exits and all other calls know it from then on. They are called for each recorded object
	// after each start, before Exits and List. Nil when the object is gone. AdoptSandbox also
	// keeps the network namespace of a running sandbox at Sandbox.NetNS.
	AdoptSandbox(ctx context.Context, id string, sb *Sandbox) error
	AdoptContainer(ctx context.Context, id string) error
}

// Former are the sandboxes and containers of another runtime.
type Former struct {
	Sandboxes  []*FormerSandbox
	Containers []*FormerContainer
}

// FormerSandbox is a sandbox that another runtime made. The times here and in FormerContainer
// are in nanoseconds since 1970, 0 for unknown.
type FormerSandbox struct {
	// ID is 64 lower-case hex digits.
	ID string
	// Config is the request that made it, as far as it is known.
	Config    *runtimeapi.PodSandboxConfig
	CreatedAt int64
	Running   bool
	// Sandbox is for its record. NetNS is where AdoptSandbox keeps the network namespace.
	Sandbox *Sandbox
}

// FormerContainer is a container that another runtime made.
type FormerContainer struct {
	ID, SandboxID string
	// Config is the request that made it, as far as it is known.
	Config *runtimeapi.ContainerConfig
	// ImageID is the store's id of its image. StopSignal is the image's, "" for none.
	ImageID, StopSignal string
	// LogPath is absolute, "" for none.
	LogPath              string
	CreatedAt, StartedAt int64
	State                State
	// Pid is the init's, 0 when none runs.
	Pid int
	// Exit is how it ended, nil when it has not.
	Exit *Exit
	// SharesPid is true for a container in the PID namespace of its sandbox.
	SharesPid bool
}

// InspectSpec says what is shown of a container.
type InspectSpec struct {
	ContainerID string
	// Resources are the container's limits since they were updated, nil before.
	Resources *runtimeapi.LinuxContainerResources
	// Secrets shows the values of environments, which are hidden otherwise.
	Secrets bool
}

// Checkpointer is an optional interface of an Engine: it writes a running container into an archive.
type Checkpointer interface {
	// Checkpoint writes the processes of a container, its OCI spec and the changes of its root filesystem
	// into a new file, which only root can read. The container goes on. Kind Unsupported when the engine is not
	// configured to, or lacks the program for it; State when it cannot write this container; Exists when the file exists.
	// Nothing is left of a Checkpoint that fails, or whose ctx ends.
	Checkpoint(ctx context.Context, spec *CheckpointSpec) error
}

// CheckpointSpec says what is written, and where.
type CheckpointSpec struct {
	ContainerID string
	// Location is the absolute path of the file, in a directory that exists.
	Location string
	// Dir is where the files of the work are until the end. It is on disk, and is removed with the container at
	// the latest.
	Dir string
	// Name is the container's, ImageID the store's id of its image, ImageRef and ImageName the references by
	// digest and by tag, "" for none.
	Name                         string
	ImageID, ImageRef, ImageName string
	CreatedAt                    time.Time
	// Resources are the container's limits since they were updated, nil before.
	Resources *runtimeapi.LinuxContainerResources
	// Reached is called at each stage, and the work waits for it. The container goes on, and Checkpoint fails, when it
	// returns an error. Nil for nothing to do.
	Reached func(ctx context.Context, stage CheckpointStage) error
}

// CheckpointStage is a point in the writing of a checkpoint.
type CheckpointStage string

// The stages of a checkpoint, in their order. The processes are stopped from CheckpointPaused until CheckpointCaptured has
// returned.
const (
	// CheckpointPaused: the processes are stopped, and nothing of them is written yet.
	CheckpointPaused CheckpointStage = "paused"
	// CheckpointCaptured: memory and files are written.
	CheckpointCaptured CheckpointStage = "captured"
	// CheckpointWritten: the archive is complete, and not at its location yet.
	CheckpointWritten CheckpointStage = "written"
)

// Supervised is an optional interface of an Engine whose containers have a supervisor.
type Supervised interface {
	// SupervisorFigures reads what the supervisor counts. Unavailable when it does not answer.
	SupervisorFigures(ctx context.Context) (*figures.Supervisor, error)
}

// Pooled is an optional interface of an Engine that keeps objects ready for use.
type Pooled interface {
	Pools() []figures.Pool
}

// Restorer is an optional interface of an Engine: it creates containers that continue the processes of a checkpoint.
// Nobody trusts an archive: the request alone says what the processes may do.
type Restorer interface {
	// CheckRestore returns an error of kind Unsupported when containers of a sandbox are not restored. sb is nil for a
	// sandbox with this handler that is not made yet.
	CheckRestore(sb *Sandbox, handler string) error
	// ReadCheckpoint reads an archive into a directory that it makes, and returns the references of the image on
	// which the container's root filesystem is based: ids, and names with a digest, the best one first. Kind Invalid when
	// the archive is at fault; the error names the entry. Create with ContainerSpec.Restored uses the directory. Remove
	// removes what is mounted; the directory is the caller's to remove.
	ReadCheckpoint(ctx context.Context, spec *RestoreSpec) (base []string, err error)
}

// RestoreSpec says where an archive is: in a file or in an image.
type RestoreSpec struct {
	// Sandbox and SandboxSpec are those of the container.
	Sandbox     *Sandbox
	SandboxSpec *SandboxSpec
	// Location is the absolute path of a file. ImageID is the store's id of an image with the content of an archive.
	// One of them is "".
	Location, ImageID string
	// Name is that of the container that the archive has to be of, "" for any.
	Name string
	// Dir is where the parts of the archive are until the container is created. It is on disk.
	Dir string
}

// CallCounter is an optional interface of an Engine that calls another program for its work.
type CallCounter interface {
	// Calls returns what was counted since the start of berth, by the name of the call, for
	// people.
	Calls() map[string]CallCount
}

// CallCount is what was counted of one call.
type CallCount struct {
	// Calls are all calls that ended, Errors those of them that failed, Timeouts those of them
	// that failed because the program took too long.
	Calls    uint64 `json:"calls"`
	Errors   uint64 `json:"errors"`
	Timeouts uint64 `json:"timeouts"`
	// Seconds is the time of all calls together, up to the begin of an answer that streams.
	Seconds float64 `json:"seconds"`
}

// Package engine is the contract between berth's rules (package pod) and a runtime
// backend. engine/native implements it through the supervisor. engine/enginetest
// holds a fake and the suite that both pass.
//
// An engine makes real objects (namespaces, cgroups, processes) and keeps no record
// of its own: the ids and directories come from the caller, which writes its record
// before the first call. So every Stop and Remove verb must succeed when its object
// was never created, was partly created, or is gone already, and must work from the
// id alone.
package engine

import (
	"context"
	"io"
	"syscall"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Engine is a runtime backend. All methods are safe for concurrent use. Callers make one
// call at a time for one id, except Exec, Attach, Signal, Stats and ReopenLog, which they may
// call at any time. LogReopener, Meter, Placeholders, Inspector, SpecReader, Checkpointer,
// Restorer and CallCounter are optional.
//
// Errors carry a kind of package errs.
type Engine interface {
	// CheckSandbox and CheckContainer refuse a request that this engine cannot honour,
	// before anything is made for it: Invalid or Unsupported, with the field's name. Malformed
	// fields have been refused before (cri/shape). The calls below rely on both and repeat
	// neither. sandbox is the request of the container's sandbox.
	CheckSandbox(config *runtimeapi.PodSandboxConfig) error
	CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error
	// CheckResources does the same for all limits of an update; field is the request's
	// field that holds them.
	CheckResources(field string, limits *runtimeapi.LinuxContainerResources) error

	// CreateSandbox makes the namespaces, the cgroup and the files of a sandbox,
	// so that a network can be attached to Sandbox.NetNS. On error the caller
	// calls RemoveSandbox.
	CreateSandbox(ctx context.Context, spec *SandboxSpec) (*Sandbox, error)
	// StartSandbox does what is left once the network is attached. It returns the sandbox for
	// the record; sb stays as it is.
	StartSandbox(ctx context.Context, spec *SandboxSpec, sb *Sandbox) (*Sandbox, error)
	// StopSandbox ends every process of the sandbox itself; its containers have
	// ended. It removes what they left in shared memory. The network namespace stays, so
	// that the network can be detached.
	StopSandbox(ctx context.Context, id string) error
	// ReleaseSandbox removes, once StopSandbox has succeeded and the network is
	// detached, the namespaces, mounts and cgroup of the sandbox. Its files stay, and
	// List still reports it.
	ReleaseSandbox(ctx context.Context, id string) error
	// ReleasedSandbox returns what is left of sb after ReleaseSandbox, for its record.
	ReleasedSandbox(sb *Sandbox) *Sandbox
	// ViewSandbox reads the engine's own part of sb.
	ViewSandbox(sb *Sandbox) SandboxView
	// UpdateSandbox changes the limits of the sandbox's cgroup, which all its
	// containers are below. What is 0 or "" in res stays as it is.
	UpdateSandbox(ctx context.Context, sb *Sandbox, res *runtimeapi.LinuxContainerResources) error
	// RemoveSandbox removes all that CreateSandbox and StartSandbox made, whether or
	// not ReleaseSandbox was called.
	RemoveSandbox(ctx context.Context, id string) error

	// Create makes a container up to the point where its init waits to execute
	// the user's program. On error the caller calls Remove. A program that cannot
	// be executed is no error here, see Container.StartError. An error names the cause, and
	// the field of the request where the request is wrong. The caller adds "cannot create
	// container". The same holds for Update.
	Create(ctx context.Context, spec *ContainerSpec) (*Container, error)
	// Start executes the user's program. An error that says that the program
	// could not be started has kind Invalid; the container's exit then comes
	// through Exits as well. pid is PidEnded for a program that has ended already.
	Start(ctx context.Context, id string) (pid int, err error)
	// Signal sends sig to the container's init, or to all its processes.
	// NotFound when no process of it runs.
	Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error
	// Update changes the cgroup limits of a created or running container. What is
	// 0 or "" in res stays as it is; a fault leaves all of them as they were.
	Update(ctx context.Context, id string, res *runtimeapi.LinuxContainerResources) error
	// Remove kills the remaining processes of the container and removes all that
	// Create made, except its log file.
	Remove(ctx context.Context, id string) error

	// Exec runs a command in a running container and returns its exit code
	// (128+n when signal n ended it). It returns when the command has ended and
	// its output is delivered; a child that outlives the command with the output
	// open does not delay it. When ctx ends first, Exec kills everything that the
	// command started and returns ctx.Err().
	Exec(ctx context.Context, spec *ExecSpec) (code int32, err error)
	// Attach connects streams to a running container until it ends, ctx ends,
	// or the client's streams do. A container whose input was closed (stdin_once)
	// still shows its output. A client that reads too slowly is dropped, with kind
	// Exhausted; so is one too many of a container. Attach does not wait for a Write
	// of a client that reads nothing: it may be under way when Attach has returned.
	Attach(ctx context.Context, spec *AttachSpec) error

	// Stats reads the figures of the given containers; one that is gone, or has no known
	// process, is absent from the result. Attributes are left to the caller.
	Stats(ctx context.Context, ids []string) (map[string]*runtimeapi.ContainerStats, error)
	// SandboxStats reads the figures of sandboxes by id: pod cgroup, network,
	// processes; one that is gone is absent. Containers are left to the caller.
	SandboxStats(ctx context.Context, sandboxes []SandboxRef) (map[string]*runtimeapi.LinuxPodSandboxStats, error)

	// List reports what exists, for recovery: every sandbox and container of which anything
	// is left. It does not wait long for one of them, see StateUnknown.
	List(ctx context.Context) ([]Actual, error)
	// Exits delivers the exits of containers: first those of containers
	// that ended without a listener and are not removed yet, then live ones, each at
	// least once, until ctx ends. A second delivery of the same exit is equal
	// to the first. There is one listener: a new one replaces the old one, whose channel is
	// closed. When a sandbox's own process (Sandbox.Pid) ends unexpectedly, its Exit has the
	// sandbox's id.
	Exits(ctx context.Context) (<-chan Exit, error)

	// Info describes the backend and its features, for Status and RuntimeConfig.
	Info(ctx context.Context) (*Info, error)
}

// PidEnded is the pid that Start returns of a container that had ended before its process was seen. Its
// exit comes through Exits. No container's process has this pid: it is not to be signalled or compared.
const PidEnded = 1

// Names finds what names stand for that Adjust may put into a spec. Its functions are never nil.
type Names struct {
	// CDI adds CDI devices to the spec, by their names.
	CDI func(names []string) error
	// BlockIO and RDT return what a class is. Kind Invalid when there is no such class, Unsupported when there are
	// no classes.
	BlockIO func(class string) (*specs.LinuxBlockIO, error)
	RDT     func(class string) (*specs.LinuxIntelRdt, error)
}

// ContainerSpec describes a container to create.
type ContainerSpec struct {
	ID          string
	SandboxSpec *SandboxSpec
	Sandbox     *Sandbox
	Config      *runtimeapi.ContainerConfig
	// ImageID is the store's id of the image.
	ImageID string
	// ImageConfig is the image's configuration.
	ImageConfig imagespec.ImageConfig
	// LogPath is the absolute path of the container's log, "" for none.
	LogPath string
	// Dir holds the container's files on disk (termination log and the like are
	// the kubelet's, not ours). Made and removed by the engine.
	Dir string
	// VolumeImages are the store's ids of the images that Config mounts, by the
	// mount's index. Create answers with a VolumeError when one cannot be mounted.
	VolumeImages map[int]string
	// TargetID is the container whose PID namespace is joined (NamespaceMode TARGET), ""
	// for none, and TargetPID its init.
	TargetID  string
	TargetPID int
	// Restored is the directory of ReadCheckpoint when the container continues the processes of a checkpoint, ""
	// when it runs the program of the request. See Restorer.
	Restored string
	// Adjust, if not nil, is called once with the container's OCI spec, after CDI devices were
	// added, and changes it. An engine without OCI specs does not call it.
	Adjust func(ctx context.Context, spec *specs.Spec, names *Names) error
	// Stage, if not nil, is called with the part of a long Create that is under way and with
	// what it waits for, each time that there is progress.
	Stage func(name, waitsFor string)
}

// Container is what Create made. It is part of the container's record.
type Container struct {
	// User is the user of the program, nil where the backend does not know it.
	User *User `json:"user,omitempty"`
	// StartError is the cause when Create found that the program cannot be executed, for
	// example because the image does not have it. Then no init waits, and the caller must
	// not call Start. "" otherwise.
	StartError string `json:"startError,omitempty"`
}

// User is an identity inside of a container.
type User struct {
	UID int64 `json:"uid"`
	GID int64 `json:"gid"`
	// Groups are all groups of the process, GID among them.
	Groups []int64 `json:"groups,omitempty"`
}

// VolumeError is the error of an image that a container mounts, and that does not exist or
// cannot be mounted. Clients handle it apart from other errors.
type VolumeError struct{ Err error }

func (e *VolumeError) Error() string { return e.Err.Error() }

func (e *VolumeError) Unwrap() error { return e.Err }

// ExecSpec is one command to run in a container. Nil streams are not connected.
type ExecSpec struct {
	ContainerID string
	Command     []string
	TTY         bool
	Stdin       io.Reader
	Stdout      io.Writer
	// Stderr is nil with TTY.
	Stderr io.Writer
	// Resize carries terminal sizes; closed or nil when there are none (more).
	Resize <-chan TerminalSize
}

// AttachSpec is one client of a container's streams. Nil streams are not
// connected.
type AttachSpec struct {
	ContainerID string
	Stdin       io.Reader
	Stdout      io.Writer
	Stderr      io.Writer
	Resize      <-chan TerminalSize
}

// TerminalSize is in characters.
type TerminalSize struct {
	Width, Height uint16
}

// Kind distinguishes sandboxes and containers in List.
type Kind string

// The kinds of object that List reports.
const (
	KindSandbox   Kind = "sandbox"
	KindContainer Kind = "container"
)

// State is what a container's processes are doing.
type State string

// The states that List reports. A partly created object is StateBroken. StateGone is that of a
// container that the engine does not have any more, whether List has an entry for what is left of it or
// not: no exit of it will be reported. StateUnknown is that of an object that exists, and whose state
// could not be read, such as a container that hangs in its start: it may be in any other state.
const (
	StateGone    State = ""
	StateUnknown State = "unknown"
	StateCreated State = "created"
	StateRunning State = "running"
	StateStopped State = "stopped"
	StateBroken  State = "broken"
)

// Actual is a sandbox or a container that exists, or of which something is left.
type Actual struct {
	Kind  Kind
	ID    string
	State State
	// Pid is the init's, 0 when none runs.
	Pid int
}

// Exit is how a container ended.
type Exit struct {
	ContainerID string
	// Code is the exit status, 128+n when signal n ended it. It is CodeUnknown with
	// ReasonUnknown, and CodeStartError with ReasonStartError.
	Code int32
	// At is when it ended (or was found to have ended).
	At time.Time
	// OOMKilled is true when the kernel's OOM killer killed a process of the container.
	OOMKilled bool
	// Reason is "" unless the engine knows more than the code. Message explains it to a
	// person.
	Reason, Message string
}

// The reasons of an exit that has no code of a program. The kubelet shows them.
const (
	// ReasonStartError is of a program that was never executed.
	ReasonStartError = "StartError"
	// ReasonUnknown is of an exit whose status could not be read.
	ReasonUnknown = "Unknown"
	// ReasonRemoved is of a container that another program removed from the engine, ReasonRestarted
	// of one that it restarted. Their codes are those of the program, or CodeUnknown.
	ReasonRemoved   = "RemovedOutside"
	ReasonRestarted = "RestartedOutside"
)

// The codes that go with those reasons.
const (
	CodeStartError = 128
	CodeUnknown    = 255
)

// HandlerInfo is a runtime handler, for people.
type HandlerInfo struct {
	// Name is "" for the default one.
	Name string `json:"name"`
	// Kind is what runs the containers. Path and Version are those of its program, if it has one.
	Kind    string `json:"kind"`
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	// Snapshotter is the proxy snapshotter that has the layers of its pods' images, "" for none.
	Snapshotter string `json:"snapshotter,omitempty"`
	// Platform is that of its pods' images, "" for the node's.
	Platform string `json:"platform,omitempty"`
	// Fault is what is wrong with it, "" for nothing.
	Fault string `json:"fault,omitempty"`
	// Pending is true while its program has not answered for the first time: version, features and faults are not known yet.
	Pending bool `json:"pending,omitempty"`
}

// CheckpointInfo says whether containers can be checkpointed, for people.
type CheckpointInfo struct {
	Enabled bool `json:"enabled"`
	// Path and Version are those of the program CRIU, Fault is why it cannot be used; "" when it can, or when
	// it is not known because checkpoints are off.
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	Fault   string `json:"fault,omitempty"`
	// Runtime is the OCI runtime that restores containers of pods without a handler of their own, nil when
	// checkpoints are off.
	Runtime *HandlerInfo `json:"runtime,omitempty"`
}

// Info describes a backend.
type Info struct {
	// Name and Version of the runtime underneath, for people.
	Name, Version string
	// CgroupDriver is "cgroupfs" or "systemd".
	CgroupDriver string
	// Handlers are the runtime handlers; the default one has name "".
	Handlers []*runtimeapi.RuntimeHandler
	// HandlerInfo describes the handlers for people, nil when the engine has no table of them.
	HandlerInfo []HandlerInfo
	// Checkpoint says whether containers can be checkpointed, nil when the engine never can.
	Checkpoint *CheckpointInfo
	// Features of the backend as a whole.
	Features *runtimeapi.RuntimeFeatures
	// HugePages is true when the host counts the huge pages of pods.
	HugePages bool
	// Warnings are limits of this host that change what pods get, one
	// sentence each.
	Warnings []string
	// Starters counts the containers by the name of what created them, and StarterReasons those of
	// them that berth's own init could not create, by the reason. Nil when the engine has one way.
	Starters, StarterReasons map[string]int
}

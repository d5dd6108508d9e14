// Package supervisor is the daemon's side of the supervisor: the messages that
// both sides exchange and a client. The process itself is package
// supervisor/server, the keeper above it is supervisor/keep; both are in the
// binary berth-supervisor.
//
// The package knows nothing of CRI, images or networks, only OCI bundles and ids.
package supervisor

import (
	"io"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/figures"
)

// ProtocolVersion is in the first message of each connection. Peers one version apart work
// with each other; a newer peer is refused.
const ProtocolVersion = 1

// CreateRequest makes a container up to the point where its init waits to
// execute the user's program.
type CreateRequest struct {
	// ID is the container's; also the name of its directory below the runtime
	// root (runc's own format).
	ID string `json:"id"`
	// Bundle is a directory with config.json, the whole OCI spec. Its
	// linux.cgroupsPath is set: "/parent/id" (cgroupfs) or "slice:prefix:id".
	// process.terminal in it selects a pty.
	Bundle string `json:"bundle"`
	// SystemdCgroup selects the systemd cgroup driver.
	SystemdCgroup bool `json:"systemdCgroup,omitempty"`
	// Stdin keeps a pipe open for clients that attach (a terminal always has
	// its input); without it the container reads /dev/null. StdinOnce closes
	// it when the first such client is done.
	Stdin     bool `json:"stdin,omitempty"`
	StdinOnce bool `json:"stdinOnce,omitempty"`
	// LogDir is the sandbox's log directory (absolute, exists) and LogPath the
	// log file's path below it; both "" for no log.
	LogDir  string `json:"logDir,omitempty"`
	LogPath string `json:"logPath,omitempty"`
	// MaxLogLine is how many bytes of text a log line holds before it is split; 0
	// is the default of package crilog.
	MaxLogLine int `json:"maxLogLine,omitempty"`
	// LogRate is how many bytes a second the container may write to its log; after
	// a burst of ten seconds' worth its writes block. 0 is no limit.
	LogRate int64 `json:"logRate,omitempty"`
	// StartTimeout bounds the runtime's own work, in Create and in Start; 0
	// means the default of 60 s.
	StartTimeout time.Duration `json:"startTimeout,omitempty"`
	// NoOwnInit has libcontainer create the container, also where berth's own init could.
	NoOwnInit bool `json:"noOwnInit,omitempty"`
	// Handler is the OCI runtime that creates the container and starts processes in it, nil for the
	// supervisor itself.
	Handler *Handler `json:"handler,omitempty"`
	// Restore continues the processes of a checkpoint in the place of the spec's program; nil for none. Only handlers
	// of ProtocolCommand can. The processes are stopped until Start. A supervisor that does not know this field starts the
	// program: the caller checks that the processes are stopped.
	Restore *Restore `json:"restore,omitempty"`
	// Sandbox has the shim make a sandbox, in the place of a container; nil for a container. Only handlers of
	// ProtocolSandbox can, and only their first container in a pod is one. Its id is that of the pod. Nothing runs by its
	// spec, which has the cgroup and the annotations. The sandbox runs when Create returns.
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

// Sandbox is what the shim gets to make a sandbox of.
type Sandbox struct {
	// Config is the sandbox's configuration: an encoded message of protocol buffers, of the type ConfigType.
	Config     []byte `json:"config"`
	ConfigType string `json:"configType"`
	// NetNS is the path of the network namespace, "" for the host's.
	NetNS string `json:"netns,omitempty"`
}

// Restore is what a container continues.
type Restore struct {
	// Images is a directory with the image files of CRIU, all of which the caller has written. The supervisor adds those
	// of the cgroups and of the seccomp filter. Work is a directory for CRIU's log, restore.log. CRIU is the path of
	// the program. All are absolute.
	Images string `json:"images"`
	Work   string `json:"work"`
	CRIU   string `json:"criu"`
}

// Handler is an OCI runtime that is a program, or a shim of containerd.
type Handler struct {
	// Name is for people.
	Name string `json:"name"`
	// Protocol is how the supervisor speaks to it: ProtocolCommand, ProtocolShim or ProtocolSandbox.
	Protocol string `json:"protocol,omitempty"`
	// Path of the program is absolute.
	Path string `json:"path"`
	// Args come before those that the supervisor adds, for ProtocolCommand.
	Args []string `json:"args,omitempty"`
	// Options are those of a shim, "Name=value": see package shimoptions.
	Options []string `json:"options,omitempty"`
	// Root is the directory in which the program keeps the state of containers: absolute, made when
	// needed, and shared with no other use of the program.
	Root string `json:"root"`
	// IsSandbox: the containers of a pod have one process on the host, the sandbox (gVisor, Kata Containers), which
	// the pod's first container starts. Signals and the ends of processes go through the shim. Not ProtocolCommand.
	IsSandbox bool `json:"isSandbox,omitempty"`
}

// The protocols of handlers.
const (
	// ProtocolCommand is the command line of runc.
	ProtocolCommand = ""
	// ProtocolShim is the shim v2 of containerd.
	ProtocolShim = "shim"
	// ProtocolSandbox is ProtocolShim, with the sandbox API for sandboxes. A supervisor of an earlier berth refuses it.
	ProtocolSandbox = "shim-sandbox"
)

// ContainerState is what a container's init is doing.
type ContainerState string

// The states.
//
//	(creating) ──▶ Created ──▶ Running ──▶ Exited
//	     │             └─────────────────────▲
//	     └──▶ Broken
//
// Broken: it is partly created, and can only be removed.
const (
	Created ContainerState = "created"
	Running ContainerState = "running"
	Exited  ContainerState = "exited"
	Broken  ContainerState = "broken"
)

// Container is one container of the supervisor.
type Container struct {
	ID    string         `json:"id"`
	State ContainerState `json:"state"`
	Pid   int            `json:"pid,omitempty"`
	// CgroupPaths maps controller to directory (key "" on cgroup v2).
	CgroupPaths map[string]string `json:"cgroupPaths,omitempty"`
	Exit        *Exit             `json:"exit,omitempty"`
	// LogError is why output does not reach the log now, "" when it does.
	LogError string `json:"logError,omitempty"`
	// Starter is what created the container: "own" (berth's own init), "libcontainer", or "handler "
	// and the name of an OCI runtime; "" for a container of an earlier version. StarterReason is why it was not berth's init.
	Starter       string `json:"starter,omitempty"`
	StarterReason string `json:"starterReason,omitempty"`
	// InSandbox is true when Pid is that of the sandbox, which has the container's processes in itself.
	InSandbox bool `json:"inSandbox,omitempty"`
}

// Exit is how a container ended.
type Exit struct {
	ID string `json:"id"`
	// Code is the exit status, 128+n when signal n ended it.
	Code int32     `json:"code"`
	At   time.Time `json:"at"`
	// OOMKilled is true when the kernel's OOM killer killed a process of the container.
	OOMKilled bool `json:"oomKilled,omitempty"`
	// StartFailed is true when the user's program was never executed.
	StartFailed bool `json:"startFailed,omitempty"`
	// Unknown is true when the exit code could not be found. Then Code is 255, and
	// Message says why.
	Unknown bool   `json:"unknown,omitempty"`
	Message string `json:"message,omitempty"`
}

// ExecRequest runs a process in a running container.
type ExecRequest struct {
	ContainerID string `json:"containerID"`
	// ExecID is unique among the execs of a container; "" lets the client choose.
	ExecID string `json:"execID"`
	// Process is what runs; Terminal in it selects a pty.
	Process *specs.Process `json:"process"`
}

// Streams are what a client of Exec or Attach reads and writes. Nil ones are not
// connected. With a terminal Stderr is not used.
type Streams struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Resize carries terminal sizes; closed or nil when there are none (more).
	Resize <-chan TerminalSize
}

// TerminalSize is in characters.
type TerminalSize struct {
	Width  uint16 `json:"width"`
	Height uint16 `json:"height"`
}

// The names of the descriptors of a container that both sides hold.
const (
	StreamStdin    = "stdin"    // the writing end of a pipe
	StreamStdout   = "stdout"   // the reading end
	StreamStderr   = "stderr"   // the reading end
	StreamTerminal = "terminal" // the master of a pty
	StreamPidfd    = "pidfd"    // of the init
	StreamStart    = "start"    // the reading end of exec.fifo, during a start
)

// Info describes the supervisor, and the limits of its host.
type Info struct {
	// Version is the supervisor binary's build; Runtime names the OCI runtime
	// inside it.
	Version string `json:"version"`
	Runtime string `json:"runtime"`
	// Protocol is the version that both sides speak on this connection.
	Protocol int `json:"protocol"`
	Pid      int `json:"pid"`
	// KeeperPid is 0 while there is no keeper.
	KeeperPid int `json:"keeperPid,omitempty"`
	// Warnings are limits of this host that change what containers get, and
	// records that could not be adopted, one sentence each.
	Warnings []string `json:"warnings,omitempty"`
	// Starters counts the containers by Container.Starter, StarterReasons by
	// Container.StarterReason.
	Starters       map[string]int `json:"starters,omitempty"`
	StarterReasons map[string]int `json:"starterReasons,omitempty"`
	// Starts counts the creates of containers since the start of this supervisor by what created them,
	// StartReasons those that berth's own init could not do, by the reason. Both have few keys.
	Starts       map[string]uint64 `json:"starts,omitempty"`
	StartReasons map[string]uint64 `json:"startReasons,omitempty"`
	// Logs counts what containers have written to their logs, nil from an older supervisor.
	Logs *figures.Logs `json:"logs,omitempty"`
	// Descriptors in use, and the limit.
	Descriptors     int `json:"descriptors"`
	DescriptorLimit int `json:"descriptorLimit"`
}

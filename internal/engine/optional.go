package engine

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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

// InspectSpec says what is shown of a container.
type InspectSpec struct {
	ContainerID string
	// Resources are the container's limits since they were updated, nil before.
	Resources *runtimeapi.LinuxContainerResources
	// Secrets shows the values of environments, which are hidden otherwise.
	Secrets bool
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

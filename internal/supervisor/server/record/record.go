// Package record has the records of a supervisor's containers, on tmpfs, for its successor.
// Supervisors one version apart read each other's records: add fields, never change one.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/hooks"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Version is in each record. A record of one version before or after is read, too.
const Version = 1

// Stage is the stage of a container's life. It is written before the step that it names begins.
// Only Exited is written afterwards, when the whole exit is known:
//
//	creating ──▶ created ──▶ starting ──▶ running ──▶ exited ──▶ (no record)
//	    │            └───────────┴────────────────────▲            ▲
//	    └──────────────────────────────────────────────────────────┘
//
// After a crash, a container in Creating is partly created: its owner removes it. The supervisor
// completes the start of one in Starting.
type Stage string

// The stages.
const (
	Creating Stage = "creating"
	Created  Stage = "created"
	Starting Stage = "starting"
	Running  Stage = "running"
	Exited   Stage = "exited"
)

// Container is the record of a container, all that another supervisor needs. It is written before
// the first resource exists and removed after the last one.
type Container struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	BootID  string `json:"bootID"`
	Stage   Stage  `json:"stage"`

	Request  supervisor.CreateRequest `json:"request"`
	Terminal bool                     `json:"terminal,omitempty"`
	Cgroups  cgroup.Paths             `json:"cgroups"`
	// Starter and StarterReason are those of supervisor.Container.
	Starter       string `json:"starter,omitempty"`
	StarterReason string `json:"starterReason,omitempty"`
	// Hooks are those that the supervisor runs itself after the creation, nil for none.
	Hooks *hooks.Kept `json:"hooks,omitempty"`
	// OOMKills is the count of the cgroup before the program began.
	OOMKills uint64   `json:"oomKills,omitempty"`
	Init     *Process `json:"init,omitempty"`
	// Pipes are the ids of the anonymous pipes (see sysfd.PipeID), by stream.
	Pipes map[string]uint64 `json:"pipes,omitempty"`
	// StdinClosed is true after the end of the one input that StdinOnce allows.
	StdinClosed bool             `json:"stdinClosed,omitempty"`
	Exit        *supervisor.Exit `json:"exit,omitempty"`
	// LogIncomplete is true when the exit was reported before the log was complete, because the
	// log hung.
	LogIncomplete bool `json:"logIncomplete,omitempty"`
}

// Process identifies a process of this boot.
type Process struct {
	Pid int `json:"pid"`
	// Start is in clock ticks since boot.
	Start uint64 `json:"start"`
	// Inode is that of its pidfd, 0 when it is not known.
	Inode uint64 `json:"inode,omitempty"`
}

// Exec is the record of an exec. It is written before the exec begins, and removed when its caller
// has the exit code.
type Exec struct {
	Version     int          `json:"version"`
	ContainerID string       `json:"containerID"`
	ExecID      string       `json:"execID"`
	Group       cgroup.Paths `json:"group,omitempty"`
	// Init is the process, nil until it has begun. Began is true without it when the process has ended before it
	// could be identified.
	Init  *Process `json:"init,omitempty"`
	Began bool     `json:"began,omitempty"`
	// Code is the exit code, nil until it has ended. Unknown is true without it when the process has ended, and its
	// code cannot be found out.
	Code    *int32 `json:"code,omitempty"`
	Unknown bool   `json:"unknown,omitempty"`
}

// Names of files in the directory of a container. That of an exec is between a prefix and a suffix.
const (
	Name       = "record.json"
	ExecPrefix = "exec-"
	ExecSuffix = ".json"
)

// Read returns the record of a container from its directory. Kind NotFound when there is none,
// Unsupported for another version, Invalid for one that cannot be used.
func Read(dir, id string) (*Container, error) {
	var r Container
	if err := ReadJSON(filepath.Join(dir, Name), &r); err != nil {
		return nil, err
	}
	switch {
	case r.Version < Version-1 || r.Version > Version+1:
		return nil, fmt.Errorf("record has version %d, this supervisor reads %d: %w", r.Version, Version, errs.Unsupported)
	case r.ID != id:
		return nil, fmt.Errorf("record of %q is that of %q: %w", id, r.ID, errs.Invalid)
	case !slices.Contains([]Stage{Creating, Created, Starting, Running, Exited}, r.Stage):
		return nil, fmt.Errorf("record has stage %q: %w", r.Stage, errs.Invalid)
	case r.Stage != Creating && r.Stage != Exited && r.Init == nil:
		return nil, fmt.Errorf("record in stage %s has no process: %w", r.Stage, errs.Invalid)
	case r.Stage == Exited && r.Exit == nil:
		return nil, fmt.Errorf("record in stage exited has no exit: %w", errs.Invalid)
	}
	return &r, r.Cgroups.Check(id)
}

// ReadJSON decodes a file into v. Kind NotFound when there is none, Invalid when it is not JSON.
func ReadJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, errs.NotFound)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("cannot decode %s: %w: %w", path, err, errs.Invalid)
	}
	return nil
}

// WriteJSON encodes v into a file, with sysfile.Replace or the method of a sysfile.Reserve. Nothing
// is synced: the file lives on tmpfs, as long as the processes that it describes.
func WriteJSON(write func(path string, data []byte) error, path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", path, err)
	}
	if err := write(path, data); err != nil {
		return fmt.Errorf("cannot write record: %w", err)
	}
	return nil
}

package server

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
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// recordVersion is written into each record. One version apart is read.
const recordVersion = 1

// stage is how far a container has come. It is written before the step that it
// names begins, but for exited, which is written when all of the exit is known:
//
//	creating ──▶ created ──▶ starting ──▶ running ──▶ exited ──▶ (no record)
//	    │            └───────────┴────────────────────▲            ▲
//	    └──────────────────────────────────────────────────────────┘
//
// A record found in creating is a container that nobody finished: its owner
// removes it. One found in starting was asked to run, and is brought to do so.
type stage string

const (
	creating stage = "creating"
	created  stage = "created"
	starting stage = "starting"
	running  stage = "running"
	exited   stage = "exited"
)

// record is what a supervisor needs of a container that another one made. It is
// written before the first resource exists and goes last.
type record struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	BootID  string `json:"bootID"`
	Stage   stage  `json:"stage"`

	Request  supervisor.CreateRequest `json:"request"`
	Terminal bool                     `json:"terminal,omitempty"`
	Cgroups  cgroup.Paths             `json:"cgroups"`
	// OOMKills is the cgroup's count before the user's program began.
	OOMKills uint64   `json:"oomKills,omitempty"`
	Init     *process `json:"init,omitempty"`
	// Pipes are the ids of the anonymous pipes, by stream.
	Pipes map[string]uint64 `json:"pipes,omitempty"`
	// StdinClosed: StdinOnce was used up.
	StdinClosed bool             `json:"stdinClosed,omitempty"`
	Exit        *supervisor.Exit `json:"exit,omitempty"`
	// LogIncomplete: the exit was told before the log was complete, which hung.
	LogIncomplete bool `json:"logIncomplete,omitempty"`
}

// process names one process of this boot.
type process struct {
	Pid int `json:"pid"`
	// Start is in clock ticks since boot.
	Start uint64 `json:"start"`
	// Inode is the pidfd's.
	Inode uint64 `json:"inode,omitempty"`
}

// execRecord is written before an exec begins and goes once its caller knows the
// code.
type execRecord struct {
	Version     int          `json:"version"`
	ContainerID string       `json:"containerID"`
	ExecID      string       `json:"execID"`
	Group       cgroup.Paths `json:"group,omitempty"`
	// Init is the process, known shortly after it began.
	Init *process `json:"init,omitempty"`
	// Code is set when it has ended.
	Code *int32 `json:"code,omitempty"`
}

const (
	recordName = "record.json"
	execPrefix = "exec-"
	execSuffix = ".json"
)

func (s *Server) dir(id string) string { return filepath.Join(s.opts.StateDir, "supervisor", id) }

func readRecord(dir, id string) (*record, error) {
	var r record
	if err := readJSON(filepath.Join(dir, recordName), &r); err != nil {
		return nil, err
	}
	switch {
	case r.Version < recordVersion-1 || r.Version > recordVersion+1:
		return nil, fmt.Errorf("record has version %d, this supervisor reads %d: %w", r.Version, recordVersion, errs.Unsupported)
	case r.ID != id:
		return nil, fmt.Errorf("record of %q is that of %q: %w", id, r.ID, errs.Invalid)
	case !slices.Contains([]stage{creating, created, starting, running, exited}, r.Stage):
		return nil, fmt.Errorf("record has stage %q: %w", r.Stage, errs.Invalid)
	case r.Stage != creating && r.Stage != exited && r.Init == nil:
		return nil, fmt.Errorf("record in stage %s has no process: %w", r.Stage, errs.Invalid)
	case r.Stage == exited && r.Exit == nil:
		return nil, fmt.Errorf("record in stage exited has no exit: %w", errs.Invalid)
	}
	return &r, r.Cgroups.Check(id)
}

func readJSON(path string, v any) error {
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

// writeJSON replaces path by v, with Replace or a reserve's. Nothing is synced: the file lives on
// tmpfs, as long as the processes that it tells of.
func writeJSON(write func(path string, data []byte) error, path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", path, err)
	}
	if err := write(path, data); err != nil {
		return fmt.Errorf("cannot write record: %w", err)
	}
	return nil
}

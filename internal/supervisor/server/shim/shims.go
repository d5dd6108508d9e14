// Package shim runs containers with containerd's shims (shim v2): programs that make containers, are the
// parents of their processes, and serve the task API.
//
// A pod has one shim. The supervisor starts it with the pod's first container, and ends it after the
// last one. The shim outlives the supervisor: another one finds it by the files of this package. Output goes
// through the supervisor's own pipes, and signals go to pidfds and cgroups, as for other containers; the
// shim makes containers, starts processes in them, and reports how these have ended.
package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Handler is a handler whose containers a shim makes.
type Handler struct {
	// Name is for people.
	Name string `json:"name"`
	// Path of the shim's program is absolute.
	Path string `json:"path"`
	// Root is the directory in which the shim's OCI runtime keeps the state of containers.
	Root string `json:"root"`
	// Options are those of the shim ("Name=value"): see package shimoptions.
	Options []string `json:"options,omitempty"`
	// IsSandbox: the containers of a pod have one process on the host. See supervisor.Handler.
	IsSandbox bool `json:"isSandbox,omitempty"`
	// SandboxAPI: the shim makes the sandbox by the sandbox API. IsSandbox is true then.
	SandboxAPI bool `json:"sandboxAPI,omitempty"`
}

// namespace is that of containerd which shims get.
const namespace = "berth"

// Shims keeps the files of shims and of their containers, in a directory on tmpfs.
type Shims struct {
	dir  string
	base *ociruntime.Runtime
	host *ociruntime.Host
	log  *slog.Logger
	// forget is called for a process of a shim that has ended.
	forget func(pid int, start uint64)

	// locks are those of the pods: one call at a time starts or ends a shim.
	locks keyed.Mutex
	// deletions are the locks of the containers that the program of a shim ends.
	deletions keyed.Mutex

	mu sync.Mutex
	// clients are the connections to shims, by pod.
	clients map[string]*taskapi.Client
	// sink is the pidfd of the process that takes the events of shims, nil for none.
	sink *os.File

	ends   ends
	probes probe.Pool
}

// New returns Shims on dir, which it creates when needed. base checks specs, and computes where containers
// will be.
func New(dir string, base *ociruntime.Runtime, host *ociruntime.Host, log *slog.Logger, forget func(pid int, start uint64)) (*Shims, error) {
	s := &Shims{dir: dir, base: base, host: host, log: log, forget: forget, clients: make(map[string]*taskapi.Client)}
	for _, sub := range []string{groupsName, containersName} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the directory of shims: %w", err)
		}
	}
	return s, nil
}

// The directories of pods and of containers.
const (
	groupsName     = "pods"
	containersName = "containers"
)

// Runtime makes containers with one handler.
type Runtime struct {
	all     *Shims
	handler Handler
}

// Of returns the Runtime of a handler.
func (s *Shims) Of(handler Handler) *Runtime { return &Runtime{all: s, handler: handler} }

// files are those of one container, in a directory of its own, which is its bundle. The shim writes its own
// files there, too. Another supervisor reads them.
type files struct{ dir string }

func (s *Shims) files(id string) files { return files{filepath.Join(s.dir, containersName, id)} }

// The names of files in a bundle. The shim of containerd 2.4 writes an exit.json of its own there.
const (
	stateName = "berth-container.json"
	specName  = "config.json"
	exitName  = "berth-exit.json"
)

// state is what this package needs to know of a container. It is written before the shim is called.
type state struct {
	Handler Handler      `json:"handler"`
	Systemd bool         `json:"systemd,omitempty"`
	Cgroups cgroup.Paths `json:"cgroups"`
	// Pod is the name of the group of containers that have one shim.
	Pod string `json:"pod"`
}

// specVersion is that of the bundles' specs: see ocicommand.
const specVersion = "1.0.2"

func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = sysfile.Replace(path, data)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// readJSON decodes a file. Kind NotFound when there is none.
func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, errs.NotFound)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("cannot decode %s: %w", path, err)
	}
	return nil
}

// make makes the directory of a container, with its bundle.
func (f files) make(s *state, fitted *specs.Spec) error {
	spec := *fitted
	spec.Version = specVersion
	if err := os.Mkdir(f.dir, 0o700); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("directory %s of the container: %w", f.dir, errs.Exists)
	} else if err != nil {
		return fmt.Errorf("cannot make the container's directory: %w", err)
	}
	if err := writeJSON(filepath.Join(f.dir, stateName), s); err != nil {
		return err
	}
	return writeJSON(filepath.Join(f.dir, specName), &spec)
}

// read returns the state of a container. Kind NotFound when there is none.
func (f files) read() (*state, error) {
	s := &state{}
	if err := readJSON(filepath.Join(f.dir, stateName), s); err != nil {
		return nil, fmt.Errorf("container %s: %w", filepath.Base(f.dir), err)
	}
	return s, nil
}

// IDs returns every id of which there are files.
func (s *Shims) IDs() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, containersName))
	if err != nil {
		return nil, fmt.Errorf("cannot list the containers of shims: %w", err)
	}
	ids := make([]string, 0, len(entries))
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids, nil
}

// Cgroups returns where a container is. Kind NotFound when there is none.
func (s *Shims) Cgroups(id string) (cgroup.Paths, error) {
	st, err := s.files(id).read()
	if err != nil {
		return nil, err
	}
	return st.Cgroups, nil
}

// The stages that errors name.
const (
	stageShim   = "start of the shim"
	stageCreate = "create"
	stageStart  = "start"
	stageState  = "state"
	stageExec   = "exec"
	stageSignal = "signal"
	stageUpdate = "update"
	stageDelete = "delete"
)

// fault adds handler, program and stage to an error of the shim, and a kind where ctx has ended.
func (h *Handler) fault(ctx context.Context, stage string, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("it took too long: %w", errs.Deadline)
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, taskapi.ErrClosed):
		err = fmt.Errorf("the shim has ended, or has closed its connection: %w", errs.Unavailable)
	}
	return fmt.Errorf("handler %q: %s %s: %w", h.Name, h.Path, stage, err)
}

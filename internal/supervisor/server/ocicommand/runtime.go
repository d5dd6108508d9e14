// Package ocicommand runs OCI runtimes that are programs (runc, crun, youki), by their command line.
//
// A program makes the container and starts processes in it; package launch is between it and the
// supervisor. All else is done without the program, as for containers that the supervisor makes
// itself: signals go to pidfds and cgroups, the output goes into the supervisor's pipes, and the
// supervisor finds the exit. So a container can be stopped and removed when its program has vanished.
package ocicommand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// Program is an OCI runtime's program.
type Program struct {
	// Name of the handler, for people.
	Name string `json:"name"`
	// Path is absolute.
	Path string `json:"path"`
	// Args come before those that berth adds.
	Args []string `json:"args,omitempty"`
	// Root is the program's own directory for the state of containers.
	Root string `json:"root"`
}

// Programs keeps the files of the containers that programs make, in a directory on tmpfs.
type Programs struct {
	dir  string
	base *ociruntime.Runtime
	host *ociruntime.Host
	log  *slog.Logger

	abilities abilities
	probes    probe.Pool
}

// New returns Programs on dir, which it creates when needed. base checks specs, and computes where
// containers will be.
func New(dir string, base *ociruntime.Runtime, host *ociruntime.Host, log *slog.Logger) (*Programs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of OCI runtimes: %w", err)
	}
	return &Programs{dir: dir, base: base, host: host, log: log}, nil
}

// Runtime makes containers with one program.
type Runtime struct {
	all     *Programs
	program Program
}

// Of returns the Runtime of a program.
func (p *Programs) Of(program Program) *Runtime { return &Runtime{all: p, program: program} }

// files are those of one container, in a directory of its own. Another supervisor reads them.
type files struct{ dir string }

func (p *Programs) files(id string) files { return files{filepath.Join(p.dir, id)} }

func (f files) bundle() string { return f.dir }

// log is the file to which the program writes its errors, by the name of a stage.
func (f files) log(stage string) string { return filepath.Join(f.dir, stage+".log") }

const (
	stateName = "container.json"
	specName  = "config.json"
)

// state is what this package needs to know of a container. It is written before the program runs.
type state struct {
	Program Program      `json:"program"`
	Systemd bool         `json:"systemd,omitempty"`
	Cgroups cgroup.Paths `json:"cgroups"`
	// Restored is true for a container that continues a checkpoint: its processes are stopped until it is started.
	Restored bool `json:"restored,omitempty"`
}

// specVersion is that of the bundles' specs. No program reads the fields of a spec by its version, and crun
// before 1.9 refuses those from 1.1 on.
const specVersion = "1.0.2"

// make makes the directory of a container, with its bundle.
func (f files) make(s *state, fitted *specs.Spec) error {
	spec := *fitted
	spec.Version = specVersion
	if s.Restored {
		spec.Annotations = maps.Clone(spec.Annotations)
		if spec.Annotations == nil {
			spec.Annotations = map[string]string{}
		}
		spec.Annotations[criuConfig] = f.criuConfig()
	}
	if err := os.Mkdir(f.dir, 0o700); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("directory %s of the container: %w", f.dir, errs.Exists)
	} else if err != nil {
		return fmt.Errorf("cannot make the container's directory: %w", err)
	}
	for name, part := range map[string]any{stateName: s, specName: spec} {
		data, err := json.Marshal(part)
		if err == nil {
			err = sysfile.Replace(filepath.Join(f.dir, name), data)
		}
		if err != nil {
			return fmt.Errorf("cannot write the container's %s: %w", name, err)
		}
	}
	return nil
}

// read returns the state of a container. Kind NotFound when there is none.
func (f files) read() (*state, error) {
	data, err := os.ReadFile(filepath.Join(f.dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("container %s: %w", filepath.Base(f.dir), errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the container's state: %w", err)
	}
	s := &state{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("cannot decode %s: %w", filepath.Join(f.dir, stateName), err)
	}
	return s, nil
}

// lockName is the file of the lock that the launcher of a create holds, deleteLockName that of the launcher of a deletion.
const (
	lockName       = "launch.lock"
	deleteLockName = "delete.lock"
)

// IDs returns every id of which there are files.
func (p *Programs) IDs() ([]string, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the containers of OCI runtimes: %w", err)
	}
	ids := make([]string, 0, len(entries))
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids, nil
}

// Cgroups returns where a container is. Kind NotFound when there is none.
func (p *Programs) Cgroups(id string) (cgroup.Paths, error) {
	s, err := p.files(id).read()
	if err != nil {
		return nil, err
	}
	return s.Cgroups, nil
}

// Remove removes what the program and this package keep of a container, whose processes are dead. A
// program that is missing, fails or hangs does not keep the container: then Remove deletes its state
// itself. Nil when there is none.
func (p *Programs) Remove(ctx context.Context, id string) error {
	f := p.files(id)
	if _, err := os.Lstat(f.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := launch.AwaitLock(ctx, filepath.Join(f.dir, lockName))
	if err != nil {
		return err
	}
	defer lock.Close()
	s, err := f.read()
	switch {
	case errors.Is(err, errs.NotFound):
	case err != nil:
		p.log.Warn("the OCI runtime does not delete a container", "container", id, "error", err)
	default:
		if err := p.Of(s.Program).remove(ctx, id, s); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(f.dir); err != nil {
		return fmt.Errorf("cannot remove the container's directory: %w", err)
	}
	return nil
}

func (r *Runtime) remove(ctx context.Context, id string, s *state) error {
	// A deletion of a supervisor that has died would meet the next container with this id.
	last, err := launch.AwaitLock(ctx, filepath.Join(r.all.files(id).dir, deleteLockName))
	if err != nil {
		return err
	}
	last.Close()
	own := filepath.Join(r.program.Root, id)
	if _, err := os.Lstat(own); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, deleteTimeout)
	defer stop()
	if _, err := r.run(ctx, stageDelete, s.Systemd, id, "delete", "--force", id); err != nil {
		r.all.log.Warn("the OCI runtime does not delete a container; berth deletes its state", "container", id, "error", err)
	}
	// A runc that was killed may have left a mount of its program there.
	if err := sysmount.UnmountBelow(own); err != nil {
		return fmt.Errorf("cannot remove the state that the OCI runtime has of it: %w", err)
	}
	if err := os.RemoveAll(own); err != nil {
		return fmt.Errorf("cannot remove the state that the OCI runtime has of it: %w", err)
	}
	return nil
}

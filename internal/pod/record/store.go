// Package record has the records of sandboxes and containers, their directories, and their
// tombstones.
//
// It owns the states, the JSON and the events of a change of a record (events.go). The only
// work that it starts is the writing of tombstones.
package record

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/store"
)

// ErrUnchanged is what a function of store.Dir.Update returns to leave a record as it is.
var ErrUnchanged = fmt.Errorf("nothing to change: %w", errs.State)

// Options configure a Store.
type Options struct {
	// StateDir is on tmpfs and holds the records. RootDir is on disk and holds the
	// quarantine and the files of sandboxes and containers.
	StateDir, RootDir string
	// Disk writes the records.
	Disk store.Disk
	Log  *slog.Logger
	// SandboxChanged and ContainerChanged are called after each change of a record; see
	// store.Options.Changed.
	SandboxChanged   func(old, new *Sandbox)
	ContainerChanged func(old, new *Container)
}

// Store holds the records of all sandboxes and containers. All methods are safe for
// concurrent use. Ids may be unambiguous prefixes; errors carry a kind of package errs.
type Store struct {
	Sandboxes  *store.Dir[Sandbox]
	Containers *store.Dir[Container]

	rootDir string
	disk    store.Disk
	log     *slog.Logger
}

// Open reads the records. One that cannot be read is moved to RootDir/quarantine and logged.
func Open(opts Options) (*Store, error) {
	s := &Store{rootDir: opts.RootDir, disk: opts.Disk, log: opts.Log}
	var err error
	if s.Sandboxes, err = OpenDir(s, store.Options[Sandbox]{
		Path: filepath.Join(opts.StateDir, "sandboxes"), Name: (*Sandbox).Name, Prior: (*Sandbox).prior,
		Changed: opts.SandboxChanged,
	}); err != nil {
		return nil, err
	}
	if s.Containers, err = OpenDir(s, store.Options[Container]{
		Path: filepath.Join(opts.StateDir, "containers"), Name: (*Container).Name, Prior: (*Container).prior,
		Group: (*Container).sandbox, Changed: opts.ContainerChanged,
	}); err != nil {
		return nil, err
	}
	return s, nil
}

// OpenDir opens one more directory of records on the disk of s. What it cannot read goes
// to the quarantine of s and into its log.
func OpenDir[T any](s *Store, opts store.Options[T]) (*store.Dir[T], error) {
	opts.Disk, opts.Quarantine = s.disk, filepath.Join(s.rootDir, "quarantine")
	dir, bad, err := store.Open(opts)
	for _, q := range bad {
		if q.Lost {
			s.log.Info("removed the empty file of a record", "file", q.Path, "reason", q.Err)
			continue
		}
		s.log.Error("cannot read a record; moving it to the quarantine",
			"file", q.Path, "error", q.Err)
	}
	return dir, err
}

// Sandbox returns a sandbox that clients may see. NotFound when there is none.
func (s *Store) Sandbox(id string) (*Sandbox, error) {
	full, err := s.SandboxID(id)
	if err != nil {
		return nil, err
	}
	rec, err := s.Sandboxes.Get(full)
	if err == nil && !rec.Visible() {
		return nil, fmt.Errorf("sandbox %q: %w: it is being made, see the jobs", id, errs.NotFound)
	}
	return rec, err
}

// SandboxID completes the id of a sandbox that clients may see. A full id is returned as it
// is, also of a sandbox that is being made.
func (s *Store) SandboxID(id string) (string, error) {
	full, err := s.Sandboxes.Resolve(id, (*Sandbox).Visible)
	switch {
	case errors.Is(err, errs.Invalid):
		err = fmt.Errorf("pod_sandbox_id: %w", err)
	case errors.Is(err, errs.NotFound):
		// CRI-O's words, which tools look for.
		err = fmt.Errorf("PodSandbox with ID starting with %s not found: %w", id, errs.NotFound)
	}
	return full, err
}

// ReadySandbox returns a sandbox that may have new containers. State when it is not ready.
func (s *Store) ReadySandbox(id string) (*Sandbox, error) {
	sb, err := s.Sandbox(id)
	if err != nil {
		return nil, err
	}
	if sb.State != SandboxReady {
		return nil, fmt.Errorf("sandbox %q is not ready (%s): %w", sb.ID, sb.State, errs.State)
	}
	return sb, nil
}

// SandboxOfNew returns the sandbox of a container that is being made: one that is ready, or that is restored with the
// container. State when it is neither.
func (s *Store) SandboxOfNew(id string) (*Sandbox, error) {
	if sb, err := s.Sandboxes.Get(id); err == nil && sb.State == SandboxRestoring {
		return sb, nil
	}
	return s.ReadySandbox(id)
}

// SandboxSpec is what the engine needs to make the sandbox and to find it again.
func (s *Store) SandboxSpec(rec *Sandbox) *engine.SandboxSpec {
	return &engine.SandboxSpec{
		ID: rec.ID, Config: rec.Config.Get(), Handler: rec.Handler,
		Dir: s.SandboxDir(rec.ID),
	}
}

// SandboxDir is where the engine keeps files of a sandbox on disk.
func (s *Store) SandboxDir(id string) string { return filepath.Join(s.rootDir, "sandboxes", id) }

// Container returns a container that clients may see. NotFound when there is none.
func (s *Store) Container(id string) (*Container, error) {
	full, err := s.ContainerID(id)
	if err != nil {
		return nil, err
	}
	rec, err := s.Containers.Get(full)
	if err == nil && !rec.Visible() {
		return nil, fmt.Errorf("container %q: %w: it is being made, see the jobs", id, errs.NotFound)
	}
	return rec, err
}

// ContainerID is SandboxID for containers.
func (s *Store) ContainerID(id string) (string, error) {
	full, err := s.Containers.Resolve(id, (*Container).Visible)
	if errors.Is(err, errs.Invalid) {
		err = fmt.Errorf("container_id: %w", err)
	}
	return full, err
}

// RunningContainer returns a container in which commands can run. State when it does not
// run.
func (s *Store) RunningContainer(id string) (*Container, error) {
	rec, err := s.Container(id)
	if err != nil {
		return nil, err
	}
	if rec.State != ContainerRunning {
		return nil, fmt.Errorf("container %q is %s, not running: %w", rec.ID, rec.State, errs.State)
	}
	return rec, nil
}

// ContainersOf returns the ids of a sandbox's containers that clients may see, sorted.
func (s *Store) ContainersOf(sandboxID string) []string {
	var ids []string
	for _, rec := range s.Containers.InGroup(sandboxID) {
		if rec.Visible() {
			ids = append(ids, rec.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// ContainerDir is where the engine keeps files of a container on disk.
func (s *Store) ContainerDir(id string) string { return filepath.Join(s.rootDir, "containers", id) }

// UnownedFiles returns the ids of sandboxes and containers that have a directory on disk and no record, each with the
// paths of its directories. It lists the directories before it looks at the records: a record is written before
// the directory, so what is being made is not among them. What has no id as its name is somebody else's.
func (s *Store) UnownedFiles() (map[string][]string, error) {
	found := map[string][]string{}
	for _, path := range []string{s.SandboxDir(""), s.ContainerDir("")} {
		entries, err := os.ReadDir(path)
		if err = errs.IgnoreNotExist(err); err != nil {
			return nil, fmt.Errorf("cannot list the files of sandboxes and containers: %w", err)
		}
		for _, entry := range entries {
			if raw, err := hex.DecodeString(entry.Name()); err == nil && len(raw) == idBytes && entry.IsDir() {
				found[entry.Name()] = append(found[entry.Name()], filepath.Join(path, entry.Name()))
			}
		}
	}
	for id := range found {
		_, noSandbox := s.Sandboxes.Get(id)
		_, noContainer := s.Containers.Get(id)
		if noSandbox == nil || noContainer == nil {
			delete(found, id)
		}
	}
	return found, nil
}

// idBytes is the length of ids, which are written as hexadecimal digits.
const idBytes = 32

// NewestTime is the newest time of any record, in nanoseconds since 1970.
func (s *Store) NewestTime() int64 {
	var newest int64
	for _, rec := range s.Sandboxes.All() {
		newest = max(newest, rec.CreatedAt)
	}
	for _, rec := range s.Containers.All() {
		newest = max(newest, rec.CreatedAt, rec.StartedAt, rec.FinishedAt)
	}
	return newest
}

// EngineView is what the engine reads from the record of a sandbox that it made.
func (r *Sandbox) EngineView(e engine.Engine) engine.SandboxView {
	if r.Engine == nil {
		return engine.SandboxView{}
	}
	return e.ViewSandbox(r.Engine)
}

// HoldsNamespaces reports whether namespaces of the sandbox may be there.
func (r *Sandbox) HoldsNamespaces(e engine.Engine) bool { return len(r.EngineView(e).Namespaces) > 0 }

package logs

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/errs"
)

// Options configure a Manager.
type Options struct {
	Client *api.Client
	// Log is slog's default when nil.
	Log *slog.Logger
	// MaxLine is how many bytes of text a line of the log holds; a longer line of the
	// container becomes several. 0 means crilog.DefaultMaxText.
	MaxLine int
}

// Container is the log of one container.
type Container struct {
	// ID is CRI's id of the container, EngineID the Docker Engine's.
	ID, EngineID string
	// Path is the absolute path of the log file, "" for a container without a log.
	Path string
	// Root is the sandbox's log directory, which Path is below. The path from Root to the file
	// may have no symbolic link. "" means the directory above that of the file, which is the
	// log directory of a kubelet's sandbox.
	Root string
	// TTY is true for a container with a terminal.
	TTY bool
	// Dir exists as long as the container and lies on tmpfs. The record of what is written is
	// there. The loss of power must take the record too: it may take lines of the log.
	Dir string
}

// engine has the calls of api.Client that a Manager uses.
type engine interface {
	ContainerLogs(ctx context.Context, id string, opts client.ContainerLogsOptions) (client.ContainerLogsResult, error)
	ContainerInspect(ctx context.Context, id string, opts client.ContainerInspectOptions) (client.ContainerInspectResult, error)
}

// Manager writes the logs of containers. All methods are safe for concurrent use.
type Manager struct {
	engine  engine
	log     *slog.Logger
	maxLine int
	// write is the write to a log file; tests put faults in it.
	write writeFunc

	mu      sync.Mutex
	closed  bool
	logs    map[string]*follower
	running sync.WaitGroup
}

// closePatience bounds how long Close waits for a write that is under way.
const closePatience = 5 * time.Second

// New returns a Manager that follows nothing yet.
func New(opts Options) *Manager {
	return newManager(opts.Client, opts.Log, opts.MaxLine)
}

func newManager(engine engine, log *slog.Logger, maxLine int) *Manager {
	return &Manager{
		engine: engine, log: cmp.Or(log, slog.Default()), maxLine: cmp.Or(maxLine, crilog.DefaultMaxText),
		write: writeFile, logs: map[string]*follower{},
	}
}

// Begin makes the log file of a new container, and follows the container. The error is an
// errs.Fault with CauseLog: Invalid when the path cannot be a log, Unavailable when its
// directory is missing, or when the file system does not answer before ctx ends.
func (m *Manager) Begin(ctx context.Context, c Container) error {
	if c.Path == "" {
		return m.Follow(c)
	}
	if err := c.check(); err != nil {
		return c.fault(err)
	}
	made := make(chan error, 1)
	go func() {
		file, err := c.place().open(true)
		if err == nil {
			file.Close()
		}
		made <- err
	}()
	select {
	case err := <-made:
		if err != nil {
			return c.fault(err)
		}
	case <-ctx.Done():
		return c.fault(fmt.Errorf("cannot open the log %s: its file system does not answer (%w): %w",
			c.Path, context.Cause(ctx), errs.Unavailable))
	}
	return m.Follow(c)
}

// Follow writes the container's output to its log until the container has ended and its log is
// complete. It continues behind what an earlier process, or an earlier Manager, has written.
// The container may be created, running or ended. Follow does not wait, and changes nothing
// for a container that is followed already, but it looks at once whether that one runs: a call
// after the start of a container saves the time until the next look. Invalid without an id, an
// absolute path or a directory.
func (m *Manager) Follow(c Container) error {
	if err := c.check(); err != nil {
		return c.fault(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("cannot follow the log of container %s: berth ends: %w", c.ID, errs.Unavailable)
	}
	if known := m.logs[c.ID]; known != nil {
		known.hurry()
		return nil
	}
	f := newFollower(m, c)
	m.logs[c.ID] = f
	if c.Path == "" {
		close(f.complete)
		return nil
	}
	m.running.Go(f.run)
	return nil
}

// Reopen continues in the file at the container's path, after a kubelet has renamed the former
// one. When it returns nil, all lines that were read before are in the former file, and new
// lines go to the new one. NotFound for an unknown container, State for one without a log or
// with a complete one, Unavailable when the former file cannot be written or ctx ends first.
func (m *Manager) Reopen(ctx context.Context, id string) error {
	f, err := m.find(id)
	if err != nil {
		return err
	}
	if f.container.Path == "" {
		return fmt.Errorf("container %s has no log: %w", id, errs.State)
	}
	return f.reopen(ctx)
}

// Drain waits until all output of a container that has ended is in its log, as far as the
// engine has it. NotFound for an unknown container, Unavailable when the log cannot be written
// or ctx ends first.
func (m *Manager) Drain(ctx context.Context, id string) error {
	f, err := m.find(id)
	if err != nil {
		return err
	}
	return f.drain(ctx)
}

// Forget stops following a container that is removed. Its log file stays.
func (m *Manager) Forget(id string) {
	m.mu.Lock()
	f := m.logs[id]
	delete(m.logs, id)
	m.mu.Unlock()
	if f != nil {
		f.stop()
	}
}

// Close stops following all containers. It waits for writes under way, but not for a file
// system that hangs.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	for _, f := range m.logs {
		f.stop()
	}
	m.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		m.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closePatience):
		m.log.Warn("a write to the log of a container is still under way")
	}
}

func (m *Manager) find(id string) (*follower, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.logs[id]; f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("log of container %s: %w", id, errs.NotFound)
}

func (c *Container) check() error {
	switch {
	case c.ID == "" || c.EngineID == "":
		return fmt.Errorf("log %q belongs to no container: %w", c.Path, errs.Invalid)
	case c.Path == "":
		return nil
	case !filepath.IsAbs(c.Path) || filepath.Clean(c.Path) != c.Path:
		return fmt.Errorf("log path %q is not an absolute path without . and ..: %w", c.Path, errs.Invalid)
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("directory %q for the record of log %s is not absolute: %w", c.Dir, c.Path, errs.Invalid)
	}
	if relative, err := filepath.Rel(c.root(), c.Path); err != nil || !filepath.IsLocal(relative) || relative == "." {
		return fmt.Errorf("log path %q is not below log directory %q: %w", c.Path, c.root(), errs.Invalid)
	}
	return nil
}

func (c *Container) root() string {
	return cmp.Or(c.Root, filepath.Dir(filepath.Dir(c.Path)))
}

// place is where the log of a checked container is.
func (c *Container) place() place {
	// check has seen that it can be relative.
	relative, _ := filepath.Rel(c.root(), c.Path)
	return place{root: c.root(), path: relative}
}

// fault is an error about the log, not about the engine.
func (c *Container) fault(err error) error {
	return &errs.Fault{Cause: errs.CauseLog, Path: c.Path, Err: err}
}

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	defaultStartTimeout = 60 * time.Second
	maxSpec             = 8 << 20
)

// create makes a container up to the point where its init waits. What it made is
// undone when it fails. The error does not say that the container cannot be created: the
// daemon does, once.
func (s *Server) create(ctx context.Context, req *supervisor.CreateRequest) (*container, error) {
	if err := s.checkDescriptors(createsEndAt); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, timeout(req.StartTimeout))
	defer stop()
	leave, err := s.enterFork(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	spec, err := readSpec(req.Bundle)
	if err != nil {
		return nil, err
	}
	plan, err := s.runtime.Plan(req.ID, req.Bundle, spec, req.SystemdCgroup, timeout(req.StartTimeout))
	if err != nil {
		return nil, err
	}
	c, err := s.claim(record{
		Version:  recordVersion,
		ID:       req.ID,
		BootID:   s.bootID,
		Stage:    creating,
		Request:  *req,
		Terminal: plan.Terminal,
		Cgroups:  plan.Cgroups,
	})
	if err != nil {
		return nil, err
	}
	defer c.end()
	c.onRemove(stop)
	if err := c.make(ctx, plan); err != nil {
		return nil, errors.Join(err, c.discard(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func timeout(asked time.Duration) time.Duration {
	if asked > 0 {
		return asked
	}
	return defaultStartTimeout
}

// make is the order of steps. Each is undone by discard, done or not.
func (c *container) make(ctx context.Context, plan *ociruntime.Plan) error {
	dir := c.server.dir(c.id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := c.update(func(*record) {}); err != nil {
		return err
	}
	request := &c.rec.Request
	ends, err := c.streams.make(plan.Terminal, request.Stdin, sysfd.Owner{UID: plan.UID, GID: plan.GID})
	if err != nil {
		return fmt.Errorf("cannot make the streams of container %s: %w", c.id, err)
	}
	defer ends.close()
	c.holdStreams(ctx)
	if plan.Terminal {
		c.server.vault.hold(ctx, c.key("console"), ends.console)
		c.mu.Lock()
		c.console = ends.console
		c.mu.Unlock()
	}
	if err := c.openPump(ctx); err != nil {
		return err
	}
	pid, err := c.server.runtime.Create(ctx, plan, &ends.StdIO)
	if err != nil {
		return err
	}
	return c.made(ctx, pid)
}

// made takes hold of the init that waits now, and records it.
func (c *container) made(ctx context.Context, pid int) error {
	// A child of ours that nobody reaps: the pid is its own.
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return fmt.Errorf("cannot watch the init of container %s: %w", c.id, err)
	}
	init, err := identify(pid, pidfd)
	if err != nil {
		pidfd.Close()
		return fmt.Errorf("cannot watch the init of container %s: %w", c.id, err)
	}
	c.mu.Lock()
	c.pidfd = pidfd
	console := c.console
	c.mu.Unlock()
	c.server.vault.hold(ctx, c.key("pidfd"), pidfd)
	if console != nil {
		master, err := receiveTerminal(ctx, console)
		if err != nil {
			return fmt.Errorf("cannot get the terminal of container %s: %w", c.id, err)
		}
		c.streams.set(supervisor.StreamTerminal, master)
		c.streams.moveTerminal(c.ended)
	}
	pipes, err := c.streams.ids()
	if err != nil {
		return fmt.Errorf("cannot identify the pipes of container %s: %w", c.id, err)
	}
	kills, err := c.rec.Cgroups.OOMKills()
	if err != nil {
		return fmt.Errorf("container %s: %w", c.id, err)
	}
	if err := c.update(func(r *record) {
		r.Stage, r.Init, r.Pipes, r.OOMKills = created, init, pipes, kills
	}); err != nil {
		return err
	}
	if err := c.server.oom.Add(c.id, c.rec.Cgroups, kills); err != nil {
		c.server.log.Debug("OOM kills are seen at the exit only", "container", c.id, "error", err)
	}
	go c.watchGuarded()
	return nil
}

func identify(pid int, pidfd *os.File) (*process, error) {
	proc, err := sysproc.ReadProc(pid)
	if err != nil {
		return nil, err
	}
	inode, err := sysproc.PidfdInode(pidfd)
	if err != nil {
		return nil, err
	}
	return &process{Pid: pid, Start: proc.Start, Inode: inode}, nil
}

// holdStreams gives the keeper duplicates of the pipes.
func (c *container) holdStreams(ctx context.Context) {
	named := c.streams.named()
	delete(named, supervisor.StreamTerminal) // it waits in the console's socket
	var files []*os.File
	for _, name := range slices.Sorted(maps.Keys(named)) {
		files = append(files, named[name])
	}
	if len(files) > 0 {
		c.server.vault.hold(ctx, c.key("pipes"), files...)
	}
}

// openPump has the log pump read the pipes from now on, or go on where a
// predecessor stopped.
func (c *container) openPump(ctx context.Context) error {
	request := c.snapshot().Request
	stdout, stderr := c.streams.pipes()
	pump, err := c.server.loop.Open(ctx, logpump.Config{
		Dir:     c.server.dir(c.id),
		LogDir:  request.LogDir,
		LogPath: request.LogPath,
		MaxText: request.MaxLogLine,
		Rate:    request.LogRate,
		Log:     c.server.log.With("container", c.id),
	}, stdout, stderr)
	if err != nil {
		return err
	}
	c.streams.given()
	c.mu.Lock()
	c.pump = pump
	c.mu.Unlock()
	return nil
}

// key names what the keeper holds of a container.
func (c *container) key(name string) string { return c.id + "/" + name }

func readSpec(bundle string) (*specs.Spec, error) {
	if !filepath.IsAbs(bundle) {
		return nil, fmt.Errorf("bundle %q is not an absolute path: %w", bundle, errs.Invalid)
	}
	f, err := os.Open(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the spec: %w: %w", err, errs.Invalid)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSpec+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the spec: %w", err)
	}
	if len(data) > maxSpec {
		return nil, &errs.Fault{Cause: errs.CauseSpec, Err: fmt.Errorf("spec is longer than %d bytes: %w", maxSpec, errs.Invalid)}
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("cannot decode the spec: %w: %w", err, errs.Invalid)
	}
	return &spec, nil
}

// From these parts of the descriptor limit on, in percent, the supervisor refuses new
// containers and new execs: the containers that run must have what they need, their
// exec probes longer than others.
const (
	createsEndAt = 80
	execsEndAt   = 90
)

// checkDescriptors is Exhausted when the supervisor uses so many percent of the
// descriptors that it may have.
func (s *Server) checkDescriptors(percent int) error {
	used, limit, err := sysfd.CountFDs()
	if err != nil {
		return err
	}
	if used >= limit*percent/100 {
		return fmt.Errorf("%d of %d descriptors are in use: %w", used, limit, errs.Exhausted)
	}
	return nil
}

// enterFork waits until processes may be started, or those that wait let go on,
// which they may not any more once this process becomes the keeper; leave must be
// called afterwards.
func (s *Server) enterFork(ctx context.Context) (leave func(), err error) {
	s.forking.RLock()
	if s.stopping.Err() != nil {
		s.forking.RUnlock()
		return nil, fmt.Errorf("supervisor is stopping: %w", errs.Unavailable)
	}
	if err := ctx.Err(); err != nil {
		s.forking.RUnlock()
		return nil, err
	}
	s.lastCreate.Store(time.Now().UnixNano())
	return s.forking.RUnlock, nil
}

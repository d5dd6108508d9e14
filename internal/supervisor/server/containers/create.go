package containers

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
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/supervisor/server/stdio"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	defaultStartTimeout = 60 * time.Second
	maxSpec             = 8 << 20
)

// Create makes a container up to the point where its init waits to execute the program. When it fails
// it undoes what it has made. The error says only why: the daemon adds that the container cannot be
// created. Kind Exists when anything of the container exists.
func (s *Set) Create(ctx context.Context, req *supervisor.CreateRequest) (*Container, error) {
	ctx, stopLasting := s.lasting(ctx)
	defer stopLasting()
	if err := s.checkDescriptors(maxPercentCreate); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, timeout(req.StartTimeout))
	defer stop()
	runtime, err := s.runtimeOf(req.Handler)
	if err != nil {
		return nil, err
	}
	if err := runtime.Check(ctx); err != nil { // before the lock: a program on a dead mount must not stop the creates of others
		return nil, err
	}
	leave, err := s.enterFork(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	spec, err := readSpec(req.Bundle)
	if err != nil {
		return nil, err
	}
	plan, err := runtime.Plan(spec, &ociruntime.PlanRequest{
		ID: req.ID, Bundle: req.Bundle, Systemd: req.SystemdCgroup, NoOwnInit: req.NoOwnInit, Timeout: timeout(req.StartTimeout),
		Restore: restoreOf(req.Restore), Sandbox: sandboxOf(req.Sandbox),
	})
	if err != nil {
		return nil, err
	}
	c, err := s.claimFor(ctx, record.Container{
		Version:  record.Version,
		ID:       req.ID,
		BootID:   s.bootID,
		Stage:    record.Creating,
		Request:  *req,
		Terminal: plan.Terminal,
		Cgroups:  plan.Cgroups,
		Hooks:    plan.Hooks,
	})
	if err != nil {
		return nil, err
	}
	defer c.unlock()
	c.onRemove(stop)
	defer c.onRemove(nil)
	if err := c.create(ctx, runtime, plan); err != nil {
		if removeErr := c.discard(context.WithoutCancel(ctx)); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("cannot remove what was created: %w", removeErr))
		}
		return nil, err
	}
	return c, nil
}

// restoreOf returns what a runtime needs to know of a restore, nil for none.
func restoreOf(r *supervisor.Restore) *ociruntime.Restore {
	if r == nil {
		return nil
	}
	return &ociruntime.Restore{Images: r.Images, Work: r.Work, CRIU: r.CRIU}
}

// sandboxOf returns what a shim makes a sandbox of, nil for a container.
func sandboxOf(s *supervisor.Sandbox) *ociruntime.Sandbox {
	if s == nil {
		return nil
	}
	return &ociruntime.Sandbox{Config: s.Config, ConfigType: s.ConfigType, NetNS: s.NetNS}
}

// timeout is the bound of a create, of a start, or of the beginning of an exec.
func timeout(asked time.Duration) time.Duration {
	if asked > 0 {
		return asked
	}
	return defaultStartTimeout
}

// create has the steps in their order. discard undoes each, done or not.
func (c *Container) create(ctx context.Context, runtime runtime, plan *ociruntime.Plan) error {
	dir := c.set.dir(c.id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := c.update(func(*record.Container) {}); err != nil {
		return err
	}
	request := &c.rec.Request
	ends, err := c.streams.Make(plan.Terminal, request.Stdin, sysfd.Owner{UID: plan.UID, GID: plan.GID})
	if err != nil {
		return fmt.Errorf("cannot make the streams of container %s: %w", c.id, err)
	}
	defer ends.Close()
	c.holdStreams(ctx)
	if plan.Terminal {
		c.set.held.Hold(ctx, c.key("console"), ends.Receiver)
		c.mu.Lock()
		c.console = ends.Receiver
		c.mu.Unlock()
	}
	// What a program prints when its create fails is in the error, and not in the container's log.
	if !runtime.Prints() {
		if err := c.openPump(ctx); err != nil {
			return err
		}
	}
	pid, release, err := runtime.Create(ctx, plan, &ends.StdIO)
	if err != nil {
		return err
	}
	defer release()
	if runtime.Prints() {
		if err := c.openPump(ctx); err != nil {
			return err
		}
	}
	c.set.countStart(plan)
	return c.recordCreated(ctx, pid, plan)
}

// recordCreated opens and records the init, which waits for the start.
func (c *Container) recordCreated(ctx context.Context, pid int, plan *ociruntime.Plan) error {
	// It is not reaped before this returns, so the pid is not reused.
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
	c.set.held.Hold(ctx, c.key("pidfd"), pidfd)
	if console != nil {
		master, err := stdio.ReceiveTerminal(ctx, console)
		if err != nil {
			return fmt.Errorf("cannot get the terminal of container %s: %w", c.id, err)
		}
		c.streams.Set(supervisor.StreamTerminal, master)
		c.streams.CopyTerminal(c.ended)
	}
	pipes, err := c.streams.IDs()
	if err != nil {
		return fmt.Errorf("cannot identify the pipes of container %s: %w", c.id, err)
	}
	kills, err := c.rec.Cgroups.OOMKills()
	if err != nil {
		return fmt.Errorf("container %s: %w", c.id, err)
	}
	if err := c.update(func(r *record.Container) {
		r.Stage, r.Init, r.Pipes, r.OOMKills = record.Created, init, pipes, kills
		r.Starter, r.StarterReason = plan.Starter, plan.Reason
	}); err != nil {
		return err
	}
	if err := c.set.oom.Add(c.id, c.rec.Cgroups, kills); err != nil {
		c.set.log.Debug("cannot watch for OOM kills; they are noticed at the exit only", "container", c.id, "error", err)
	}
	c.watch()
	return nil
}

// maxReasons bounds the reasons that are logged: some have names in them.
const maxReasons = 100

// otherReasons stands for the reasons beyond maxReasons.
const otherReasons = "other"

// countStart counts a create, and logs once for each reason that libcontainer has done it.
func (s *Set) countStart(plan *ociruntime.Plan) {
	s.mu.Lock()
	s.starts[plan.Starter]++
	reason, known := plan.Reason, true
	if reason != "" {
		if _, known = s.reasons[reason]; !known && len(s.reasons) >= maxReasons {
			reason, known = otherReasons, true
		}
		s.reasons[reason]++
	}
	s.mu.Unlock()
	if !known {
		s.log.Info("libcontainer creates a container", "container", plan.ID, "reason", plan.Reason)
	}
}

// Starts counts the creates by what did them, and those that berth's own init could not do by the reason,
// since the start of this process.
func (s *Set) Starts() (starters, reasons map[string]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.starts), maps.Clone(s.reasons)
}

// identify returns the names of a process that outlive this one.
func identify(pid int, pidfd *os.File) (*record.Process, error) {
	proc, err := sysproc.ReadProc(pid)
	if err != nil {
		return nil, err
	}
	inode, err := sysproc.PidfdInode(pidfd)
	if err != nil {
		return nil, err
	}
	return &record.Process{Pid: pid, Start: proc.Start, Inode: inode}, nil
}

// holdStreams has the keeper hold duplicates of the pipes.
func (c *Container) holdStreams(ctx context.Context) {
	named := c.streams.Named()
	delete(named, supervisor.StreamTerminal) // the keeper holds it in the socket of the console
	var files []*os.File
	for _, name := range slices.Sorted(maps.Keys(named)) {
		files = append(files, named[name])
	}
	if len(files) > 0 {
		c.set.held.Hold(ctx, c.key("pipes"), files...)
	}
}

// openPump starts the log pump on the pipes, or lets it continue where a predecessor stopped.
func (c *Container) openPump(ctx context.Context) error {
	request := c.snapshot().Request
	stdout, stderr := c.streams.Pipes()
	pump, err := c.set.loop.Open(ctx, logpump.Config{
		Dir:     c.set.dir(c.id),
		LogDir:  request.LogDir,
		LogPath: request.LogPath,
		MaxText: request.MaxLogLine,
		Rate:    request.LogRate,
		Log:     c.set.log.With("container", c.id),
	}, stdout, stderr)
	if err != nil {
		return err
	}
	c.streams.SetPumped()
	c.mu.Lock()
	c.pump = pump
	c.mu.Unlock()
	return nil
}

// key is the key of a descriptor of the container in the keeper.
func (c *Container) key(name string) string { return c.id + "/" + name }

// readSpec returns the OCI spec of a bundle. Kind Invalid when the bundle is at fault.
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

// The supervisor refuses new containers and new execs when it uses so many percent of its limit of
// descriptors. The containers that run must have what they need, and their exec probes work longer
// than new containers are made.
const (
	maxPercentCreate = 80
	maxPercentExec   = 90
)

// checkDescriptors returns an error of kind Exhausted when the supervisor uses so many percent of its
// limit of descriptors.
func (s *Set) checkDescriptors(percent int) error {
	used, limit, err := sysfd.CountFDs()
	if err != nil {
		return err
	}
	if used >= limit*percent/100 {
		return fmt.Errorf("%d of %d descriptors are in use: %w", used, limit, errs.Exhausted)
	}
	return nil
}

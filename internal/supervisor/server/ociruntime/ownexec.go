package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/allow"
	"github.com/berthrun/berth/internal/supervisor/ownstart/filter"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/ownstart/run"
	"github.com/berthrun/berth/internal/supervisor/ownstart/trees"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/execstate"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// execStarter starts execs with a child of berth's own where it can, and all else with starter.
type execStarter struct {
	starter
	own *ownExecutor
}

func (s *execStarter) exec(ctx context.Context, e *Exec, state *execstate.State) (pid int, err error) {
	if e.NoOwnInit {
		return s.starter.exec(ctx, e, state)
	}
	process, err := s.own.process(ctx, e, state)
	if err == nil {
		pid, err = s.own.exec(ctx, e, state, process)
	}
	var unfit *unfitError
	if !errors.As(err, &unfit) {
		return pid, err
	}
	s.own.logOnce(unfit)
	return s.starter.exec(ctx, e, state)
}

// unfitError is why berth's own child cannot become the process of an exec. Nothing has happened then.
type unfitError struct{ reason string }

func (e *unfitError) Error() string { return e.reason }

// ownExecutor starts execs with a child of berth's own: see package child.
type ownExecutor struct {
	// refusal is why no container of this host can have a child of berth's own, "" for no reason.
	refusal string
	filters *filter.Cache
	// reapSoon reaps what a child that could not be started may have left.
	reapSoon func()
	// parts are opened for the first exec.
	parts func() (*execParts, error)

	mu sync.Mutex
	// logged are the reasons that were logged.
	logged map[string]bool
}

// execParts are what all execs share.
type execParts struct {
	program *fork.Program
	// proc is the host's procfs.
	proc *os.File
	null *null
}

// newOwnExecutor returns an ownExecutor.
func newOwnExecutor(refusal string, filters *filter.Cache, reapSoon func(), program func() (*fork.Program, error)) *ownExecutor {
	return &ownExecutor{
		refusal:  refusal,
		filters:  filters,
		reapSoon: reapSoon,
		parts:    sync.OnceValues(func() (*execParts, error) { return openExecParts(program) }),
		logged:   make(map[string]bool),
	}
}

// warm opens before the first start what all starts use. An error is the reason of the first one.
func (o *ownExecutor) warm() {
	if parts, err := o.parts(); err == nil {
		_ = parts.program.Prepare() // each start reports its error
	}
}

func openExecParts(program func() (*fork.Program, error)) (*execParts, error) {
	shared, err := program()
	if err != nil {
		return nil, err
	}
	p := &execParts{program: shared}
	if p.proc, err = os.OpenFile("/proc", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, fmt.Errorf("cannot open the host's procfs: %w", err)
	}
	if p.null, err = openNull(); err != nil {
		return nil, err
	}
	return p, nil
}

// null is what a process has in the place of streams that it does not get: the host's /dev/null for reading and for writing.
type null struct{ input, output *os.File }

// openNull opens /dev/null on a read-only mount of its own. A device on it can be written as anywhere, but its mode and its
// owner cannot be changed: the node is the host's, and a process of a container may have the uid of its owner.
func openNull() (*null, error) {
	tree, err := trees.Clone(unix.AT_FDCWD, os.DevNull, false)
	if err != nil {
		return nil, fmt.Errorf("cannot clone the mount of %s: %w", os.DevNull, err)
	}
	defer unix.Close(tree)
	if err := trees.Change(tree, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}, false); err != nil {
		return nil, fmt.Errorf("cannot make a mount of %s read-only: %w", os.DevNull, err)
	}
	n, path := &null{}, fmt.Sprintf("/proc/self/fd/%d", tree)
	if n.input, err = os.OpenFile(path, os.O_RDONLY, 0); err == nil {
		n.output, err = os.OpenFile(path, os.O_WRONLY, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", os.DevNull, err)
	}
	return n, nil
}

// process returns what the child becomes. The error is an *unfitError where only libcontainer can start
// the process, or refuses it.
func (o *ownExecutor) process(ctx context.Context, e *Exec, s *execstate.State) (*finish.Process, error) {
	for _, reason := range []string{o.refusal, s.Unfit} {
		if reason != "" {
			return nil, &unfitError{reason}
		}
	}
	if ok, reason := allow.FastExec(e.Process); !ok {
		return nil, &unfitError{reason}
	}
	f, err := s.Filter(ctx, o.filters)
	if err != nil {
		if ctx.Err() != nil {
			return nil, cause(ctx)
		}
		return nil, &unfitError{err.Error()}
	}
	p, err := finish.FromSpec(e.Process, f)
	if err != nil {
		return nil, &unfitError{err.Error()} // libcontainer's error names the fault in its words
	}
	inherit(p, e, s)
	return p, nil
}

// inherit sets what the container decides, as libcontainer does.
func inherit(p *finish.Process, e *Exec, s *execstate.State) {
	own := s.Process
	if e.Process.User.Umask == nil {
		p.Umask = own.Umask
	}
	if p.Capabilities == nil {
		p.Capabilities = own.Capabilities
	}
	if len(p.Rlimits) == 0 {
		p.Rlimits = own.Rlimits
	}
	if p.AppArmor == "" {
		p.AppArmor = own.AppArmor
	}
	if p.SELinux == "" {
		p.SELinux = own.SELinux
	}
	p.OOMScoreAdj, p.Keyring, p.KeyringAccess = own.OOMScoreAdj, own.Keyring, own.KeyringAccess
}

// exec is starter.exec. The error is an *unfitError when no child could be started.
func (o *ownExecutor) exec(ctx context.Context, e *Exec, s *execstate.State, p *finish.Process) (pid int, err error) {
	parts, err := o.parts()
	if err != nil {
		return 0, &unfitError{err.Error()}
	}
	init, err := openInit(e, s)
	if err != nil {
		return 0, err
	}
	defer init.Close()
	relative, err := e.Group.MakeBelow(s.Cgroups)
	if err != nil {
		return 0, err
	}
	paths := maps.Clone(s.Cgroups)
	for controller, dir := range relative {
		paths[controller] = filepath.Join(s.Cgroups[controller], dir)
	}
	cgroups, err := cgroup.Paths(paths).OpenEntrance(cgroup.Paths(s.Cgroups).HasLittleMemory())
	if err != nil {
		return 0, err
	}
	defer cgroups.Close()
	if err := giveStreams(s.Users, p.UID, p.GID, &e.StdIO); err != nil {
		return 0, err
	}
	request := &run.Exec{
		Init:       init,
		Pid:        s.Pid,
		Namespaces: s.Namespaces,
		Cgroup:     cgroups.V2,
		Tasks:      cgroups.Tasks,
		Proc:       parts.proc,
		Pidfd:      e.Pidfd,
		Stdio:      [3]*os.File{e.StdIO.Stdin, e.StdIO.Stdout, e.StdIO.Stderr},
		Console:    e.StdIO.Console,
		Process:    p,
	}
	for i, null := range []*os.File{parts.null.input, parts.null.output, parts.null.output} {
		if request.Stdio[i] == nil {
			request.Stdio[i] = null
		}
	}
	if size := e.Process.ConsoleSize; size != nil {
		request.Width, request.Height = int(size.Width), int(size.Height)
	}
	pid, err = run.Start(ctx, parts.program, request)
	var notBegun *run.NotBegunError
	if errors.As(err, &notBegun) || errors.Is(err, errs.Unavailable) {
		o.reapSoon() // the caller kills the cgroup of the exec, in which there may be a child that was not reported
	}
	switch {
	case ctx.Err() != nil && err != nil:
		return 0, fmt.Errorf("%w (the process was killed)", cause(ctx))
	case notBegun != nil:
		return 0, &unfitError{err.Error()}
	}
	return pid, err
}

// openInit returns a pidfd of the container's init. Kind State when it has ended.
func openInit(e *Exec, s *execstate.State) (*os.File, error) {
	if e.Init != nil {
		return sysfd.Duplicate(e.Init)
	}
	pidfd, err := sysproc.OpenPidfd(s.Pid)
	if err == nil {
		var proc sysproc.Proc
		if proc, err = sysproc.ReadProc(s.Pid); err == nil && proc.Start != s.StartTime {
			err = errs.NotFound
		}
		if err != nil {
			pidfd.Close()
		}
	}
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("its init has ended: %w", errs.State)
	}
	return pidfd, err
}

// logOnce logs each reason once: it holds for many execs.
func (o *ownExecutor) logOnce(unfit *unfitError) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const maxLogged = 100
	if !o.logged[unfit.reason] && len(o.logged) < maxLogged {
		o.logged[unfit.reason] = true
		slog.Info("libcontainer starts an exec", "reason", unfit.reason)
	}
}

package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// orphanTimeout is how long an exec whose caller is gone may run on. The caller may come back, after a
// restart of its own or of this process.
const orphanTimeout = 30 * time.Second

// initFailedCode is the exit code of an init that ends before it executes the program.
const initFailedCode = 255

// Execution is a process that Exec has started in a container.
type Execution struct {
	container *Container
	id        string
	group     cgroup.Paths
	// socket has the pidfd of the process, for a successor.
	socket *os.File
	pidfd  *os.File
	init   *record.Process
	// adopting is closed when an adoption in the background has found the process, or that there is none; nil without one.
	adopting <-chan struct{}
	// done is closed when code and err are known.
	done    chan struct{}
	code    int32
	err     error
	hasCode bool // code is valid
	unknown bool // it has ended, and code cannot be found out
	// began is true once the runtime has started the process.
	began bool
	// mayNotHaveBegun is true when a predecessor died while it started the process.
	mayNotHaveBegun bool
	// program is the path that it executes, "" when a predecessor started it.
	program string

	// container.mu guards these.
	callers  int
	removing bool
	// removed is closed when nothing is left of it, and its id is free.
	removed chan struct{}
}

// notExecuted is the error of an exec whose program did not run.
func (c *Container) notExecuted(err error) error {
	return fmt.Errorf("cannot exec in container %s: %w", c.id, err)
}

// Exec runs a process and returns it once it has begun. See Execution.Wait.
func (c *Container) Exec(ctx context.Context, req *supervisor.ExecRequest, stdio ociruntime.StdIO) (*Execution, error) {
	e, err := c.exec(ctx, req, stdio)
	if err != nil {
		return nil, c.notExecuted(err)
	}
	return e, nil
}

// JoinExec returns an exec whose call was lost with a connection. Kind NotFound when there is
// none.
func (c *Container) JoinExec(id string) (*Execution, error) {
	c.mu.Lock()
	e := c.execs[id]
	if e != nil {
		e.callers++
	}
	c.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("exec %s in container %s: %w", id, c.id, errs.NotFound)
	}
	return e, nil
}

// exec starts a process, and kills it when the caller cancels first. The end of the caller's
// connection, or of this process, does not interrupt the start: otherwise the process would be
// killed after it has begun, and the successor would run it a second time.
func (c *Container) exec(ctx context.Context, req *supervisor.ExecRequest, stdio ociruntime.StdIO) (_ *Execution, err error) {
	spec := req.Process
	if spec == nil || len(spec.Args) == 0 || !validExecID(req.ExecID) {
		return nil, fmt.Errorf("exec %q without command, or with a bad id: %w", req.ExecID, errs.Invalid)
	}
	if spec.Terminal != (stdio.Console != nil) {
		return nil, fmt.Errorf("exec %q: terminal and console do not go together: %w", req.ExecID, errs.Invalid)
	}
	endTurn, err := c.set.execTurn(ctx) // before the checks: the container may end while this waits
	if err != nil {
		return nil, err
	}
	defer endTurn()
	rec := c.snapshot()
	if rec.Stage == record.Starting {
		// Its program may run already: the start of a predecessor is being completed.
		if err := c.lock(ctx); err != nil {
			return nil, err
		}
		c.unlock()
		rec = c.snapshot()
	}
	if rec.Stage != record.Running {
		return nil, fmt.Errorf("it is %s: %w", rec.Stage, errs.State)
	}
	if err := c.set.checkDescriptors(maxPercentExec); err != nil {
		return nil, err
	}
	leave, err := c.set.enterFork(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	e, err := c.claimExec(req.ExecID)
	if err != nil {
		return nil, err
	}
	e.program = spec.Args[0]
	ctx, cancel := c.set.outlasting(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, timeout(c.snapshot().Request.StartTimeout))
	defer stop()
	if err := e.start(ctx, spec, stdio); err != nil {
		if c.set.stopping.Err() != nil {
			return nil, fmt.Errorf("%w: %w", err, errs.Unavailable) // a successor finds out how far it came
		}
		e.killAll()
		if c.ending() {
			// libcontainer's error is a consequence of that.
			err = fmt.Errorf("it is ending: %w (%v)", errs.State, err) //nolint:errorlint // not of the cause's kind
		}
		e.err = c.notExecuted(err)
		close(e.done)
		e.remove()
		return nil, err
	}
	go e.watchProtected()
	return e, nil
}

// execTurnTime is how long an exec that does not begin keeps others waiting: its container may be frozen, or have
// little CPU.
const execTurnTime = time.Second

// execTurns is how many execs may be starting at the same time on a machine with so many CPUs. Each is a new process:
// with more of them at a time, each takes longer, and fewer begin in a second.
func execTurns(cpus int) int64 { return int64(max(4, 2*cpus)) }

// execTurn waits until the exec may start. end must be called afterwards.
func (s *Set) execTurn(ctx context.Context) (end func(), err error) {
	if err := s.execs.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	free := sync.OnceFunc(func() { s.execs.Release(1) })
	timer := time.AfterFunc(execTurnTime, free)
	return func() {
		timer.Stop()
		free()
	}, nil
}

// validExecID reports whether the id can be part of a file's and of a cgroup's name.
func validExecID(id string) bool {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
	return len(id) >= 1 && len(id) <= 128 && strings.Trim(id, letters) == ""
}

// claimExec adds an exec with an id, and one caller. Kind Exists when the id is taken. When a
// predecessor took the id and did not start the exec, the id is free again: the caller repeats the
// call with it, perhaps before the answer to the first call is handled.
func (c *Container) claimExec(id string) (*Execution, error) {
	e := c.newExecution(id)
	e.group = ociruntime.ExecGroup(c.snapshot().Cgroups, id)
	e.callers = 1
	for {
		c.mu.Lock()
		old := c.execs[id]
		if old == nil {
			c.execs[id] = e
		}
		c.mu.Unlock()
		switch {
		case old == nil:
			return e, nil
		case !old.neverBegan():
			return nil, fmt.Errorf("exec %s: %w", id, errs.Exists)
		}
		old.remove()
		<-old.removed
	}
}

// newExecution returns an exec that is not added yet.
func (c *Container) newExecution(id string) *Execution {
	return &Execution{container: c, id: id, done: make(chan struct{}), removed: make(chan struct{})}
}

// neverBegan reports whether a predecessor died before it had started the process.
func (e *Execution) neverBegan() bool {
	return isClosed(e.done) && errors.Is(e.err, errs.NotFound)
}

// start starts the process. It writes the record first, and the keeper has the pidfd before any
// code of the user runs.
func (e *Execution) start(ctx context.Context, spec *specs.Process, stdio ociruntime.StdIO) error {
	c := e.container
	if err := e.write(); err != nil {
		return err
	}
	receiver, sender, err := sysfd.FDSocket()
	if err != nil {
		return err
	}
	defer sender.Close()
	e.socket = receiver
	c.set.held.Hold(ctx, e.key(), receiver)
	c.mu.Lock()
	init := c.pidfd
	c.mu.Unlock()
	runtime, err := c.runtime()
	if err != nil {
		return err
	}
	pid, release, err := runtime.Exec(ctx, &ociruntime.Exec{
		ContainerID: c.id,
		ID:          e.id,
		Process:     spec,
		NoOwnInit:   c.snapshot().Request.NoOwnInit,
		Init:        init,
		StdIO:       stdio,
		Pidfd:       sender,
		Group:       e.group,
	})
	if err != nil {
		return err
	}
	defer release() // until then it is not reaped, so the pid is not reused
	e.began = true
	if err := e.open(pid); err != nil {
		return err
	}
	return e.write()
}

// open opens and identifies the process, unless its runtime has reaped it: pid is 0 then, or no process has it any
// more.
func (e *Execution) open(pid int) error {
	if pid == 0 {
		return nil
	}
	pidfd, err := sysproc.OpenPidfd(pid)
	if err == nil {
		if e.init, err = identify(pid, pidfd); err == nil {
			e.pidfd = pidfd
			return nil
		}
		pidfd.Close()
	}
	if errors.Is(err, errs.NotFound) {
		return nil // reaped a moment ago; the runtime knows its code
	}
	return fmt.Errorf("cannot watch exec %s: %w", e.id, err)
}

func (e *Execution) key() string { return e.container.key("exec/" + e.id) }

func (e *Execution) path() string {
	return filepath.Join(e.container.set.dir(e.container.id), record.ExecPrefix+e.id+record.ExecSuffix)
}

func (e *Execution) write() error {
	r := record.Exec{Version: record.Version, ContainerID: e.container.id, ExecID: e.id, Group: e.group, Init: e.init, Began: e.began, Unknown: e.unknown}
	if e.hasCode {
		r.Code = &e.code
	}
	return record.WriteJSON(e.container.set.reserve.Replace, e.path(), &r)
}

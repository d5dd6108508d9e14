package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/wire"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// orphanTimeout is how long an exec runs on whose caller is gone; it may come back
// after this process's death, or its own.
const orphanTimeout = 30 * time.Second

// initFailed is the code of an init that ends before it executes the program.
const initFailed = 255

// execution is one process that was run in a container.
type execution struct {
	container *container
	id        string
	group     cgroup.Paths
	// socket holds the process's pidfd, for a successor.
	socket *os.File
	pidfd  *os.File
	init   *process
	// done is closed when code and err are known.
	done chan struct{}
	code int32
	err  error
	over bool // code is true
	// uncertain: the process was on its way when a predecessor died.
	uncertain bool
	// program is what it executes, "" when a predecessor began it.
	program string

	// Under container.mu.
	callers    int
	forgetting bool
	// forgotten is closed when nothing is left of it, and its id is free.
	forgotten chan struct{}
}

func (ss *session) exec(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.ExecCall
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	named, err := files(req, body.Files)
	if err != nil {
		return nil, err
	}
	c, err := ss.server.find(body.ContainerID)
	if err != nil {
		return nil, err
	}
	e, err := c.exec(ctx, &body.ExecRequest, ociruntime.StdIO{
		Stdin:   named[supervisor.StreamStdin],
		Stdout:  named[supervisor.StreamStdout],
		Stderr:  named[supervisor.StreamStderr],
		Console: named[supervisor.FileConsole],
	})
	// The process has its own; the client waits for the end of these.
	closeFiles(req.Files)
	if err != nil {
		return nil, c.notExecuted(err)
	}
	return e.result(ctx)
}

// notExecuted is the error of an exec whose program did not run.
func (c *container) notExecuted(err error) error {
	return fmt.Errorf("cannot exec in container %s: %w", c.id, err)
}

// execWait joins an exec whose call was lost with a connection.
func (ss *session) execWait(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.ExecRef
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	c, err := ss.server.find(body.ContainerID)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	e := c.execs[body.ExecID]
	if e != nil {
		e.callers++
	}
	c.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("exec %s in container %s: %w", body.ExecID, body.ContainerID, errs.NotFound)
	}
	return e.result(ctx)
}

// exec starts a process. When the caller cancels first, what was started is killed.
// The end of its connection, or of this process, does not cut a start in two: a
// process that had begun would be killed, and run a second time by the successor.
func (c *container) exec(ctx context.Context, req *supervisor.ExecRequest, stdio ociruntime.StdIO) (_ *execution, err error) {
	spec := req.Process
	if spec == nil || len(spec.Args) == 0 || !validExecID(req.ExecID) {
		return nil, fmt.Errorf("exec %q without command, or with a bad id: %w", req.ExecID, errs.Invalid)
	}
	if spec.Terminal != (stdio.Console != nil) {
		return nil, fmt.Errorf("exec %q: terminal and console do not go together: %w", req.ExecID, errs.Invalid)
	}
	rec := c.snapshot()
	if rec.Stage == starting {
		// Its program may run already, and a predecessor's start is being brought to
		// its end.
		if err := c.begin(ctx); err != nil {
			return nil, err
		}
		c.end()
		rec = c.snapshot()
	}
	if rec.Stage != running {
		return nil, fmt.Errorf("it is %s: %w", rec.Stage, errs.State)
	}
	if err := c.server.checkDescriptors(execsEndAt); err != nil {
		return nil, err
	}
	leave, err := c.server.enterFork(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	e, err := c.newExec(req.ExecID)
	if err != nil {
		return nil, err
	}
	e.program = spec.Args[0]
	ctx, cancel := outlasting(ctx, c.server)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, timeout(c.snapshot().Request.StartTimeout))
	defer stop()
	if err := e.start(ctx, spec, stdio); err != nil {
		if c.server.stopping.Err() != nil {
			return nil, fmt.Errorf("%w: %w", err, errs.Unavailable) // a successor finds how far it came
		}
		e.killRest()
		if c.ending() {
			// libcontainer met the end of it somewhere, and complains of that.
			err = fmt.Errorf("it is ending: %w (%v)", errs.State, err) //nolint:errorlint // not of the cause's kind
		}
		e.err = c.notExecuted(err)
		close(e.done)
		e.forget()
		return nil, err
	}
	go e.watchGuarded()
	return e, nil
}

// validExecID reports whether the id can be part of a file's and of a cgroup's name.
func validExecID(id string) bool {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"
	return len(id) >= 1 && len(id) <= 128 && strings.Trim(id, letters) == ""
}

// newExec makes an id known, with a caller who waits. The id of one that a predecessor
// took and did not begin is free again: its caller comes back with it, and may be here
// before the answer that told him so is done with.
func (c *container) newExec(id string) (*execution, error) {
	e := c.execution(id)
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
		old.forget()
		<-old.forgotten
	}
}

// execution is one that nobody knows yet.
func (c *container) execution(id string) *execution {
	return &execution{container: c, id: id, done: make(chan struct{}), forgotten: make(chan struct{})}
}

// neverBegan reports whether a predecessor died before the process was there.
func (e *execution) neverBegan() bool {
	return isClosed(e.done) && errors.Is(e.err, errs.NotFound)
}

// start runs the process. It is recorded before it begins, and its pidfd reaches
// the keeper before any code of the user's runs.
func (e *execution) start(ctx context.Context, spec *specs.Process, stdio ociruntime.StdIO) error {
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
	c.server.vault.hold(ctx, e.key(), receiver)
	pid, err := c.server.runtime.Exec(ctx, &ociruntime.Exec{
		ContainerID: c.id,
		Process:     spec,
		StdIO:       stdio,
		Pidfd:       sender,
		Group:       e.group,
	})
	if err != nil {
		return err
	}
	// A child of ours that nobody reaps: the pid is its own.
	if e.pidfd, err = sysproc.OpenPidfd(pid); err != nil {
		return fmt.Errorf("cannot watch exec %s: %w", e.id, err)
	}
	if e.init, err = identify(pid, e.pidfd); err != nil {
		return fmt.Errorf("cannot watch exec %s: %w", e.id, err)
	}
	return e.write()
}

// watchGuarded is watch, of whose faults the other containers hear nothing.
func (e *execution) watchGuarded() {
	errs.Protect("watch of exec "+e.id+" in container "+e.container.id, e.watch)
}

// watch waits for the process's end. What it left behind runs on.
func (e *execution) watch() {
	c := e.container
	if e.pidfd != nil {
		if err := sysproc.AwaitExit(c.server.stopping, e.pidfd); err != nil {
			return // this process ends; a successor goes on
		}
	}
	e.code, e.err = e.status()
	if e.err == nil && e.code == initFailed && e.init != nil && e.program != "" && ociruntime.NeverExecuted(e.init.Pid) {
		e.err = c.notExecuted(fmt.Errorf("exec: %q: no such file or directory, or exec format error "+
			"(its interpreter or loader is missing, or it is for another machine): %w", e.program, errs.Invalid))
	}
	if e.uncertain && e.err == nil && e.code == initFailed {
		e.err = fmt.Errorf("exec %s in container %s: it did not begin before the supervisor's death, or ended with code %d: %w",
			e.id, c.id, initFailed, errs.Unavailable)
	}
	e.over = e.err == nil
	if err := e.write(); err != nil && !isClosed(c.gone) {
		c.server.log.Warn("the end of an exec is not recorded", "container", c.id, "exec", e.id, "error", err)
	}
	if e.pidfd != nil {
		c.server.reapChild(e.pidfd, "container", c.id, "exec", e.id)
	}
	if e.init != nil {
		c.server.strangers.forget(e.init)
	}
	close(e.done)
	e.orphaned()
}

func (e *execution) status() (int32, error) {
	for deadline := time.Now().Add(askAgain); ; time.Sleep(10 * time.Millisecond) {
		status, _, ok := e.container.server.askStatus(e.pidfd, e.init)
		if ok {
			return sysproc.ExitCode(status), nil
		}
		if time.Now().After(deadline) {
			return unknownCode, fmt.Errorf("exit code of exec %s in container %s: %w", e.id, e.container.id, errs.Unavailable)
		}
	}
}

// result waits for the end. When the caller cancels, all that the exec started is
// killed; when its connection ends, it may come back.
func (e *execution) result(ctx context.Context) (*wire.Reply, error) {
	select {
	case <-e.done:
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), errs.Unavailable) {
			e.leave()
			return nil, context.Cause(ctx)
		}
		e.killRest()
		<-e.done
		e.forget()
		return nil, ctx.Err()
	}
	// Who does not get the answer comes back for it; an exec that nobody knows any
	// more he would run once more.
	after := func(sent bool) {
		if sent {
			e.forget()
		} else {
			e.leave()
		}
	}
	if e.err != nil {
		return &wire.Reply{After: after}, e.err
	}
	return &wire.Reply{Body: &supervisor.ExecResult{Code: e.code}, After: after}, nil
}

// leave counts off a caller who did not get his answer; the last one leaves an orphan.
func (e *execution) leave() {
	e.container.mu.Lock()
	e.callers--
	e.container.mu.Unlock()
	e.orphaned()
}

// alone reports whether nobody waits for an exec that is not forgotten.
func (e *execution) alone() bool {
	c := e.container
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.callers == 0 && !e.forgetting && c.execs[e.id] == e
}

// orphaned kills, after a while, an exec that nobody waits for, and forgets it.
func (e *execution) orphaned() {
	if !e.alone() {
		return // who leaves last comes here again
	}
	c := e.container
	time.AfterFunc(orphanTimeout, func() {
		if !e.alone() || isClosed(c.gone) || c.server.stopping.Err() != nil {
			return
		}
		if !isClosed(e.done) {
			c.server.log.Info("an exec that nobody waits for is killed", "container", c.id, "exec", e.id)
			e.killRest()
			select {
			case <-e.done:
			case <-c.server.stopping.Done():
				return // a successor goes on
			}
		}
		e.forget()
	})
}

// killRest kills all that the exec started.
func (e *execution) killRest() {
	c := e.container
	ctx, stop := context.WithTimeout(context.Background(), killTimeout)
	defer stop()
	if err := e.group.Kill(ctx); err != nil {
		c.server.log.Warn("an exec is not killed", "container", c.id, "exec", e.id, "error", err)
	}
	if e.pidfd != nil { // were it ever out of its cgroup
		if err := sysproc.SignalPidfd(e.pidfd, syscall.SIGKILL); err != nil && !errors.Is(err, errs.NotFound) {
			c.server.log.Warn("an exec is not killed", "container", c.id, "exec", e.id, "error", err)
		}
	}
}

// forget removes what there is of an exec that has ended. Its cgroup stays while
// something that it left behind runs there; a later one removes it, or the
// container's end.
func (e *execution) forget() {
	c := e.container
	c.mu.Lock()
	if c.execs[e.id] != e || e.forgetting {
		c.mu.Unlock()
		return
	}
	e.forgetting = true
	c.mu.Unlock()
	defer c.sweepGroups()
	defer close(e.forgotten)
	defer func() { // at last: whoever has the id next has the same record and key
		c.mu.Lock()
		delete(c.execs, e.id)
		c.mu.Unlock()
	}()
	c.server.vault.release(e.key())
	closeFiles([]*os.File{e.socket, e.pidfd})
	if err := errs.IgnoreNotExist(os.Remove(e.path())); err != nil {
		c.server.log.Warn("the record of an exec is not removed", "container", c.id, "exec", e.id, "error", err)
	}
	if e.init != nil && c.server.opts.Keeper != nil {
		ctx, stop := context.WithTimeout(context.Background(), keeperTimeout)
		defer stop()
		if err := c.server.opts.Keeper.Forget(ctx, e.init.Pid, e.init.Start); err != nil {
			c.server.log.Debug("the keeper keeps an exit", "container", c.id, "exec", e.id, "error", err)
		}
	}
}

// sweepGroups removes the cgroups of execs that have ended and left nothing.
func (c *container) sweepGroups() {
	for _, dir := range ociruntime.ExecGroup(c.snapshot().Cgroups, "*") {
		matches, err := filepath.Glob(dir)
		if err != nil {
			continue
		}
		for _, match := range matches {
			c.mu.Lock()
			inUse := c.execs[match[strings.LastIndex(match, ociruntime.ExecGroupPrefix)+len(ociruntime.ExecGroupPrefix):]] != nil
			c.mu.Unlock()
			if inUse {
				continue
			}
			if err := syscall.Rmdir(match); err != nil {
				continue // somebody still runs in it
			}
		}
	}
}

// endExecs waits for the execs of a container whose processes are dead.
func (c *container) endExecs() {
	c.mu.Lock()
	var all []*execution
	for _, e := range c.execs {
		all = append(all, e)
	}
	c.mu.Unlock()
	for _, e := range all {
		select {
		case <-e.done:
			e.forget()
		case <-time.After(askAgain + time.Second):
		}
	}
}

func (e *execution) key() string { return e.container.key("exec/" + e.id) }

func (e *execution) path() string {
	return filepath.Join(e.container.server.dir(e.container.id), execPrefix+e.id+execSuffix)
}

func (e *execution) write() error {
	r := execRecord{Version: recordVersion, ContainerID: e.container.id, ExecID: e.id, Group: e.group, Init: e.init}
	if e.over {
		r.Code = &e.code
	}
	return writeJSON(e.container.server.reserve.Replace, e.path(), &r)
}

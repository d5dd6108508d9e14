package containers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// watchProtected is watch, whose panic does not end the process.
func (e *Execution) watchProtected() {
	errs.Protect("watch of exec "+e.id+" in container "+e.container.id, e.watch)
}

// watch waits for the end of the process, and records it. The children of the process continue to
// run.
func (e *Execution) watch() {
	c := e.container
	runtime, err := c.runtime()
	pidfd := e.pidfd
	if err == nil && runtime.Local() && pidfd == nil && e.init != nil {
		if pidfd, err = c.set.reopen(e.init); pidfd != nil { // adoption could not open it
			defer pidfd.Close()
		}
	}
	watched := &ociruntime.Watched{ContainerID: c.id, ExecID: e.id, Pidfd: pidfd}
	var end *ociruntime.Ended
	if err == nil {
		end, err = runtime.Await(c.set.stopping, watched)
	}
	if err != nil {
		if c.set.stopping.Err() != nil {
			return // this process ends; a successor continues
		}
		c.set.log.Warn("cannot watch an exec any more; its exit code may be unknown", "container", c.id, "exec", e.id, "error", err)
		end = &ociruntime.Ended{}
	}
	e.code, e.err = e.status(pidfd, end)
	flushed := e.err != nil && runtime != nil
	if flushed { // the runtime may know the code by now
		if last := e.flush(runtime, watched); last.Known {
			e.code, e.err = last.Code, nil
		}
	}
	e.unknown = e.err != nil
	if e.unknown && c.set.stopping.Err() != nil {
		return // a successor may find it out
	}
	if e.err == nil && e.code == initFailedCode && e.init != nil && e.program != "" && ociruntime.NeverExecuted(e.init.Pid) {
		e.err = c.notExecuted(fmt.Errorf("exec: %q: no such file or directory, or exec format error "+
			"(its interpreter or loader is missing, or it is for another machine): %w", e.program, errs.Invalid))
	}
	if e.mayNotHaveBegun && e.err == nil && e.code == initFailedCode {
		e.err = fmt.Errorf("exec %s in container %s: it did not begin before the supervisor's death, or ended with code %d: %w",
			e.id, c.id, initFailedCode, errs.Unavailable)
	}
	e.hasCode = e.err == nil
	if err := e.write(); err != nil && !isClosed(c.gone) {
		c.set.log.Warn("cannot record the end of an exec", "container", c.id, "exec", e.id, "error", err)
	}
	if runtime != nil && !flushed { // after the record: the runtime forgets the code
		e.flush(runtime, watched)
	}
	if pidfd != nil {
		c.set.reapChild(pidfd, "container", c.id, "exec", e.id)
	}
	if e.init != nil {
		c.set.adopted.Forget(e.init)
	}
	close(e.done)
	e.scheduleOrphanKill()
}

// execsTimeout bounds the wait for execs whose container has ended. Their processes are dead, or do not die.
const execsTimeout = 5 * time.Second

// awaitExecs returns when all execs have ended and their exit codes are recorded, or after execsTimeout.
func (c *Container) awaitExecs() {
	c.mu.Lock()
	execs := slices.Collect(maps.Values(c.execs))
	c.mu.Unlock()
	ctx, stop := context.WithTimeout(c.set.stopping, execsTimeout)
	defer stop()
	for _, e := range execs {
		select {
		case <-e.done:
		case <-ctx.Done():
			return
		}
	}
}

// flush waits for the end of the output, and returns what the runtime knows of the end.
func (e *Execution) flush(runtime runtime, watched *ociruntime.Watched) *ociruntime.Ended {
	last, err := runtime.Flush(e.container.set.stopping, watched)
	if err != nil {
		e.container.set.log.Debug("the end of an exec's output may be missing", "container", e.container.id, "exec", e.id, "error", err)
	}
	return last
}

// status is the exit code of the process.
func (e *Execution) status(pidfd *os.File, end *ociruntime.Ended) (int32, error) {
	if end.Known {
		return end.Code, nil
	}
	for deadline := time.Now().Add(statusTimeout); ; time.Sleep(10 * time.Millisecond) {
		status, _, ok := e.container.set.readStatus(pidfd, e.init)
		if ok {
			return sysproc.ExitCode(status), nil
		}
		if time.Now().After(deadline) {
			return unknownCode, e.codeUnknown()
		}
	}
}

// codeUnknown is the error of an exec that has ended with a code that cannot be found out.
func (e *Execution) codeUnknown() error {
	return fmt.Errorf("exit code of exec %s in container %s: %w", e.id, e.container.id, errs.Unavailable)
}

// Wait waits for the end and returns the exit code (128+n when signal n ended it). When the caller
// cancels, Wait kills all that the exec started. When the caller's connection ends, the caller may
// reconnect. answered, unless nil, must be called with whether the caller got the answer: a caller
// without an answer repeats the call, which would run a removed exec again.
func (e *Execution) Wait(ctx context.Context) (code int32, answered func(sent bool), err error) {
	select {
	case <-e.done:
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), errs.Unavailable) {
			e.removeCaller()
			return 0, nil, context.Cause(ctx)
		}
		e.killAll()
		<-e.done
		e.remove()
		return 0, nil, ctx.Err()
	}
	return e.code, func(sent bool) {
		if sent {
			e.remove()
		} else {
			e.removeCaller()
		}
	}, e.err
}

// removeCaller removes a caller that did not get its answer. An exec without callers is an orphan.
func (e *Execution) removeCaller() {
	e.container.mu.Lock()
	e.callers--
	e.container.mu.Unlock()
	e.scheduleOrphanKill()
}

// isOrphan reports whether the exec has no caller, and is not being removed.
func (e *Execution) isOrphan() bool {
	c := e.container
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.callers == 0 && !e.removing && c.execs[e.id] == e
}

// scheduleOrphanKill kills and removes an exec without callers, unless one reconnects in time.
func (e *Execution) scheduleOrphanKill() {
	if !e.isOrphan() {
		return // the last caller that leaves calls this again
	}
	c := e.container
	time.AfterFunc(orphanTimeout, func() {
		if !e.isOrphan() || isClosed(c.gone) || c.set.stopping.Err() != nil {
			return
		}
		if !isClosed(e.done) {
			c.set.log.Info("killing an exec whose caller is gone", "container", c.id, "exec", e.id)
			e.killAll()
			select {
			case <-e.done:
			case <-c.set.stopping.Done():
				return // a successor continues
			}
		}
		e.remove()
	})
}

// killAll kills the process and all that it has started, once its adoption is over.
func (e *Execution) killAll() {
	if e.adopting != nil {
		<-e.adopting
	}
	e.kill()
}

func (e *Execution) kill() {
	c := e.container
	ctx, stop := context.WithTimeout(context.Background(), killTimeout)
	defer stop()
	if runtime, err := c.runtime(); err == nil {
		_, err = runtime.Signal(ctx, &ociruntime.Signalled{ContainerID: c.id, ExecID: e.id, Signal: syscall.SIGKILL, All: true})
		if errs.IgnoreNotFound(err) != nil {
			c.set.log.Warn("the runtime does not kill an exec", "container", c.id, "exec", e.id, "error", err)
		}
	}
	if err := e.group.Kill(ctx); err != nil {
		c.set.log.Warn("cannot kill an exec", "container", c.id, "exec", e.id, "error", err)
	}
	if e.pidfd != nil { // in case it has left its cgroup
		if err := sysproc.SignalPidfd(e.pidfd, syscall.SIGKILL); err != nil && !errors.Is(err, errs.NotFound) {
			c.set.log.Warn("cannot kill an exec", "container", c.id, "exec", e.id, "error", err)
		}
	}
}

// remove removes an exec that has ended, but for its cgroup while processes run in it: sweepGroups of
// a later exec removes that, or the end of the container does.
func (e *Execution) remove() {
	c := e.container
	c.mu.Lock()
	if c.execs[e.id] != e || e.removing {
		c.mu.Unlock()
		return
	}
	e.removing = true
	c.mu.Unlock()
	defer c.sweepGroups()
	defer close(e.removed)
	defer func() { // last: the next exec with this id has the same record and key
		c.mu.Lock()
		delete(c.execs, e.id)
		c.mu.Unlock()
	}()
	c.set.held.Release(e.key())
	closeFiles([]*os.File{e.socket, e.pidfd})
	if err := errs.IgnoreNotExist(os.Remove(e.path())); err != nil {
		c.set.log.Warn("cannot remove the record of an exec", "container", c.id, "exec", e.id, "error", err)
	}
	if e.init != nil {
		c.set.forgetExit(e.init.Pid, e.init.Start)
	}
}

// sweepGroups removes the cgroups of execs that have ended, but for those that still have processes.
func (c *Container) sweepGroups() {
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
				continue // it still has processes
			}
		}
	}
}

// endExecs waits for the execs of a container whose processes are dead, and removes them.
func (c *Container) endExecs() {
	c.mu.Lock()
	var all []*Execution
	for _, e := range c.execs {
		all = append(all, e)
	}
	c.mu.Unlock()
	for _, e := range all {
		select {
		case <-e.done:
			e.remove()
		case <-time.After(statusTimeout + time.Second):
		}
	}
}

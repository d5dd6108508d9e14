package containers

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// adoptExecs adopts the execs that a predecessor ran.
func (c *Container) adoptExecs(ctx context.Context) {
	matches, err := filepath.Glob(filepath.Join(c.set.dir(c.id), record.ExecPrefix+"*"+record.ExecSuffix))
	if err != nil {
		return
	}
	for _, path := range matches {
		var r record.Exec
		if err := record.ReadJSON(path, &r); err != nil || r.ContainerID != c.id {
			c.set.warn("cannot use the record %s of an exec: %v", path, err)
			continue
		}
		e := c.newExecution(r.ExecID)
		e.group, e.init, e.began = r.Group, r.Init, r.Began
		e.mayNotHaveBegun = r.Init == nil && !r.Began
		c.mu.Lock()
		c.execs[e.id] = e
		c.mu.Unlock()
		e.adopt(ctx, &r)
	}
}

// adopt continues to watch an exec, or has its end. One that a predecessor died with while it started it may take a while, and is
// adopted in the background: other containers wait for this.
func (e *Execution) adopt(ctx context.Context, r *record.Exec) {
	if held := e.container.set.held.Get(e.key()); len(held) == 1 {
		if socket, err := sysfd.Pollable(held[0]); err == nil {
			e.socket = socket
			e.container.set.held.Hold(ctx, e.key(), socket)
			_, _ = e.adoptPidfd(sentAlready) // what fails here is tried again, below or in adoptStarting
		}
	}
	if e.pidfd == nil && e.init != nil {
		if pidfd, err := openProcess(e.init); err == nil {
			e.pidfd = pidfd
		}
	}
	switch {
	case r.Code != nil:
		e.code, e.hasCode = *r.Code, true
	case r.Unknown:
		e.err, e.unknown = e.codeUnknown(), true
	case e.pidfd != nil || e.init != nil || e.began:
		e.follow()
		return
	default:
		adopted := make(chan struct{})
		e.adopting = adopted
		go errs.Protect("adoption of exec "+e.id+" in container "+e.container.id, func() {
			defer close(adopted)
			e.adoptStarting(ctx)
		})
		return
	}
	close(e.done)
	e.scheduleOrphanKill()
}

// follow watches an adopted exec.
func (e *Execution) follow() {
	e.container.set.adopted.Follow(e.init)
	go e.watchProtected()
	e.scheduleOrphanKill() // its caller may have given up while no supervisor ran
}

// adoptStarting adopts an exec that a predecessor had not started yet, as far as is known.
func (e *Execution) adoptStarting(ctx context.Context) {
	sent, began := true, false
	var err error
	if e.socket != nil {
		sent, err = e.adoptPidfd(time.Second) // either it is there, or its sender is alive
	}
	if err == nil && e.pidfd == nil && e.init == nil {
		began, err = e.askRuntime(ctx, sent)
	}
	switch {
	case err != nil:
		e.err = err
	case e.pidfd != nil || e.init != nil || began:
		e.follow()
		return
	case e.socket == nil:
		// The keeper died as well, or did not get the socket. The command must not run a second time.
		e.err = fmt.Errorf("exec %s in container %s: the supervisor died and the keeper holds nothing of the exec, so it is unknown whether the command began: %w", e.id, e.container.id, errs.Unavailable)
	default:
		e.err = fmt.Errorf("exec %s in container %s: it did not begin before the supervisor's death: %w", e.id, e.container.id, errs.NotFound)
	}
	e.kill()
	close(e.done)
	e.scheduleOrphanKill()
}

// askRuntime reports whether the runtime has started the process of an exec, as far as that knows. It opens the process, if it
// still runs. sent is false when the predecessor has sent nothing for its successor.
func (e *Execution) askRuntime(ctx context.Context, sent bool) (began bool, err error) {
	runtime, err := e.container.runtime()
	if err != nil {
		return false, err
	}
	pid, began, err := runtime.Began(ctx, e.container.id, e.id, sent)
	if err != nil || !began {
		return false, err
	}
	e.began, e.mayNotHaveBegun = true, false
	return true, errors.Join(e.open(pid), e.write())
}

// sentAlready is the patience with a pidfd that is in its socket already.
const sentAlready = 10 * time.Millisecond

// adoptPidfd takes the pidfd that a runtime has sent for a successor. sent is false when nothing was sent. Kind
// Unavailable when the pidfd could not be taken in that time, for example because too many files are open: the command
// may have begun.
func (e *Execution) adoptPidfd(patience time.Duration) (sent bool, err error) {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	for {
		sent, takeErr := e.takePidfd(ctx)
		switch {
		case takeErr == nil:
			return sent, nil
		case !errors.Is(takeErr, context.DeadlineExceeded):
			err = takeErr
		case err == nil:
			return true, nil // its sender is alive, and has sent nothing yet
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return true, fmt.Errorf("exec %s in container %s: the supervisor died, and its process cannot be opened: %w: %w",
				e.id, e.container.id, err, errs.Unavailable)
		}
	}
}

// takePidfd is one attempt of adoptPidfd.
func (e *Execution) takePidfd(ctx context.Context) (sent bool, err error) {
	fd, err := sysfd.PeekFD(ctx, e.socket)
	if err != nil {
		return false, errs.IgnoreNotFound(err)
	}
	if sysfd.IsSocket(fd) { // the connection over which a shim started the process
		sysfd.CloseFDs([]int{fd})
		return true, nil
	}
	pidfd, err := sysproc.NewPidfd(fd)
	if err != nil {
		return true, err
	}
	if e.init == nil {
		var pid int
		if pid, err = sysproc.PidfdPid(pidfd); err == nil {
			e.init, err = identify(pid, pidfd)
		}
		if errs.IgnoreNotFound(err) != nil { // without its identity its exit code could not be found
			pidfd.Close()
			return true, err
		}
	}
	e.pidfd = pidfd
	return true, nil
}

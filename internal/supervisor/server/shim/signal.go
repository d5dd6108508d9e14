package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// signalTimeout bounds a signal: a shim repeats one that fails for a second.
const signalTimeout = 5 * time.Second

// Signal sends a signal to processes that the kernel does not have, because the shim's runtime is a sandbox. done is
// false for those of others. Kind NotFound when they have ended.
//
// The root container is the sandbox, and so is the sandbox of the sandbox API: see stopSandbox. If the shim does not kill it, Signal kills the sandbox's process, and all
// containers of the pod end.
func (r *Runtime) Signal(ctx context.Context, s *ociruntime.Signalled) (done bool, err error) {
	if !r.handler.IsSandbox {
		return false, nil
	}
	st, err := r.all.files(s.ContainerID).read()
	if err != nil {
		return true, err
	}
	if r.isSandbox(st.Pod, s.ContainerID) {
		return true, r.stopSandbox(ctx, st.Pod, s)
	}
	killsSandbox := st.Pod == s.ContainerID && s.ExecID == "" && s.Signal == syscall.SIGKILL && s.Pidfd != nil
	if found, err := r.all.readPod(st.Pod); err == nil && !found.lives() {
		if killsSandbox { // it may outlive its shim
			return true, killSandbox(s.Pidfd)
		}
		return true, fmt.Errorf("shim of container %s: %w", s.ContainerID, errs.NotFound)
	}
	if s.ExecID == "" && r.all.files(s.ContainerID).deleted() { // ended before its start
		return true, fmt.Errorf("process of container %s: %w", s.ContainerID, errs.NotFound)
	}
	caller := ctx
	ctx, stop := context.WithTimeout(ctx, r.all.files(s.ContainerID).patience(signalTimeout))
	defer stop()
	kills := s.Signal == syscall.SIGKILL && s.ExecID == ""
	client, err := r.all.client(ctx, st.Pod)
	if err == nil && kills && r.endCreated(ctx, client, s.ContainerID) {
		return true, nil
	}
	if err == nil {
		err = client.Kill(ctx, s.ContainerID, s.ExecID, int(s.Signal), s.All)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errs.NotFound):
		return true, fmt.Errorf("process of container %s: %w", s.ContainerID, errs.NotFound)
	case kills && !killsSandbox && ctx.Err() != nil && caller.Err() == nil && r.endByProgram(caller, s.ContainerID, true):
		return true, nil
	}
	err = r.handler.fault(ctx, stageSignal, err)
	if !killsSandbox {
		return true, err
	}
	r.all.log.Warn("a shim does not kill a sandbox; killing its process", "pod", st.Pod, "handler", r.handler.Name, "error", err)
	return true, killSandbox(s.Pidfd)
}

// endCreated ends a container that was not started, and reports whether it has. gVisor signals only what runs, and its
// shim waits forever for the output when it is to delete anything else.
func (r *Runtime) endCreated(ctx context.Context, client *taskapi.Client, id string) bool {
	st, err := client.State(ctx, id, "")
	return err == nil && st.Status == taskapi.Created && r.endByProgram(ctx, id, false)
}

// endByProgram ends a container by the deletion of the shim's program, and reports whether it has: the container was not
// started, or the shim does not answer for it; then it may run. The shim is not asked about the container any more: Await
// is notified here. The exit is recorded first, unless it is known: a supervisor that dies during the deletion leaves a
// record of it, and its successor does not ask the shim either.
func (r *Runtime) endByProgram(ctx context.Context, id string, mayRun bool) bool {
	f := r.all.files(id)
	unlock, err := r.all.deletions.Lock(ctx, id)
	if err != nil {
		return false
	}
	defer unlock()
	path, known := filepath.Join(f.dir, exitName), f.exited()
	if !known {
		err = writeJSON(path, savedExit{Code: killedCode, At: time.Now(), Deleted: true, MayRun: mayRun})
	}
	if err == nil {
		if err = r.deleteByProgram(ctx, id, f.dir); err != nil && !known && f.deleted() { // else the shim has reported the exit
			err = errors.Join(err, os.Remove(path))
		}
	}
	if err != nil {
		r.all.log.Warn("the program of a shim does not delete a container; killing it", "container", id, "handler", r.handler.Name, "error", err)
		return false
	}
	r.all.ends.notify(id)
	return true
}

// killedCode is the code of a process that SIGKILL has ended.
const killedCode = 128 + int32(syscall.SIGKILL)

// ends are the containers that the program of a shim has ended; the shim does not report them. The zero value is ready.
type ends struct {
	mu sync.Mutex
	of map[string]chan struct{}
}

// channel returns what is closed when the container is ended.
func (e *ends) channel(id string) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = map[string]chan struct{}{}
	}
	if e.of[id] == nil {
		e.of[id] = make(chan struct{})
	}
	return e.of[id]
}

// notify closes the channel of a container.
func (e *ends) notify(id string) {
	ch := e.channel(id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !isClosed(ch) {
		close(ch)
	}
}

// forget forgets a container that is removed.
func (e *ends) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.of, id)
}

// killSandbox kills the process of a sandbox. Nil when it has ended.
func killSandbox(pidfd *os.File) error {
	if err := errs.IgnoreNotFound(sysproc.SignalPidfd(pidfd, syscall.SIGKILL)); err != nil {
		return fmt.Errorf("cannot kill the sandbox: %w", err)
	}
	return nil
}

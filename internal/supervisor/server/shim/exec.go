package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	// startGrace is how long a start that was cancelled may go on. A shim that gives up a start does not know the
	// process that it has started, perhaps.
	startGrace = 2 * time.Second
	// undoTimeout bounds the kill of an exec that is not to run, and then its removal.
	undoTimeout = 5 * time.Second
	// beganTimeout bounds the question for an exec of a former supervisor: the adoption of all containers
	// waits for it.
	beganTimeout = 5 * time.Second
)

// Exec starts a process in a running container and returns its pid, 0 when it has ended already: then Await has
// its code. See ociruntime.Runtime.Exec.
func (r *Runtime) Exec(ctx context.Context, e *ociruntime.Exec) (pid int, release func(), err error) {
	st, err := r.all.files(e.ContainerID).read()
	if err != nil {
		return 0, nil, err
	}
	// A start would wait until the container is thawed.
	paused, err := st.Cgroups.Frozen()
	if err != nil {
		return 0, nil, err
	}
	if paused {
		return 0, nil, fmt.Errorf("it is paused: %w", errs.State)
	}
	r.all.host.FitProcess(e.Process)
	spec, err := json.Marshal(e.Process)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot encode the process: %w", err)
	}
	var relative map[string]string
	if !r.handler.IsSandbox { // a sandbox has its processes in itself
		if relative, err = e.Group.MakeBelow(st.Cgroups); err != nil {
			return 0, nil, err
		}
	}
	client, err := r.all.client(ctx, st.Pod)
	if err != nil {
		return 0, nil, r.handler.fault(ctx, stageExec, err)
	}
	streams, err := r.streamsOf(st.Pod, e.ContainerID, e.ID, &e.StdIO)
	if err != nil {
		return 0, nil, err
	}
	defer streams.close()
	if err := client.Exec(ctx, e.ContainerID, e.ID, streams.paths, spec); err != nil {
		return 0, nil, ociruntime.Classify(r.handler.fault(ctx, stageExec, err), "")
	}
	pid, err = r.startExec(ctx, st.Pod, e)
	if err != nil {
		err = r.handler.fault(ctx, stageExec, err)
		r.undoExec(ctx, client, st, e)
		return 0, nil, ociruntime.Classify(err, "")
	}
	if pid = r.own(st.Pod, pid); pid != 0 {
		if err := r.gather(st.Pod, e.Group, relative, pid); err != nil {
			r.undoExec(ctx, client, st, e)
			return 0, nil, err
		}
	}
	streams.opened(ctx)
	return pid, func() {}, nil
}

// gather moves a process and its descendants into the cgroup of its exec. Nil when it has ended, as a short command
// may have.
func (r *Runtime) gather(pod string, group cgroup.Paths, relative map[string]string, pid int) error {
	for controller := range relative {
		if err := group.Sub("", controller).Gather(pid); errs.IgnoreNotFound(err) != nil && r.own(pod, pid) != 0 {
			return fmt.Errorf("cannot move process %d into the cgroup of its exec: %w", pid, err)
		}
	}
	return nil
}

// startExec starts the process. The keeper has the connection, in the socket for the process's pidfd. When ctx ends
// first, the start has startGrace more: the caller kills a process that has begun.
func (r *Runtime) startExec(ctx context.Context, pod string, e *ociruntime.Exec) (pid int, err error) {
	client, file, err := r.all.single(ctx, pod)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	defer file.Close()
	own, err := sysfd.Duplicate(e.Pidfd)
	if err != nil {
		return 0, err
	}
	socket, err := sysfd.FileUnixConn(own) // which closes own
	if err != nil {
		return 0, err
	}
	defer socket.Close()
	if err := sysfd.SendFiles(socket, []byte("fd"), []*os.File{file}); err != nil {
		return 0, err
	}
	starting, stop := outlasting(ctx, startGrace)
	defer stop()
	pid, err = client.Start(starting, e.ContainerID, e.ID)
	if err != nil {
		client.Abort() // the keeper has the connection: without this a start that hangs goes on, and its removal waits
	}
	return pid, err
}

// outlasting returns a context that ends some time after ctx. stop must be called.
func outlasting(ctx context.Context, by time.Duration) (_ context.Context, stop func()) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return out, func() {
		unhook()
		cancel()
	}
}

// undoExec removes an exec that is not to run.
func (r *Runtime) undoExec(ctx context.Context, client *taskapi.Client, st *state, e *ociruntime.Exec) {
	if _, err := r.removeExec(ctx, client, st, e.ContainerID, e.ID); err != nil {
		r.all.log.Debug("a shim keeps an exec that did not start", "container", e.ContainerID, "exec", e.ID, "error", err)
	}
}

// removeExec kills an exec, and removes it from its shim. begun is true when its process has begun, as far as that is known.
// The error is nil when the shim does not have the exec.
func (r *Runtime) removeExec(ctx context.Context, client *taskapi.Client, st *state, id, exec string) (begun bool, err error) {
	ctx = context.WithoutCancel(ctx)
	killing, stop := context.WithTimeout(ctx, undoTimeout)
	defer stop()
	_, _ = client.State(killing, id, exec) // the shim answers once a start that is under way has ended
	begun, killErr := r.killBegun(killing, st, id, exec)
	_ = client.Kill(killing, id, exec, int(syscall.SIGKILL), true) // it may not have begun
	deleting, stop := context.WithTimeout(ctx, undoTimeout)        // a kill that hangs leaves time for it
	defer stop()
	for {
		_, err = client.Delete(deleting, id, exec)
		if err = errs.IgnoreNotFound(err); err == nil || !begun || deleting.Err() != nil {
			return begun, errors.Join(killErr, err)
		}
		time.Sleep(10 * time.Millisecond) // the shim has not reaped it yet
	}
}

// pidFile is the file in which the shims of runc and of gVisor have the OCI runtime write the pid of an exec. They remove it
// when they delete the exec.
func (f files) pidFile(exec string) string { return filepath.Join(f.dir, exec+".pid") }

// killBegun kills the process of an exec, with its descendants, by the file with its pid. begun is true when there is such a
// file. A shim may not know the process: it opens the streams of an exec, and reads that file, after the OCI runtime has
// started the process. If it cannot open them, because the process that had them has died, it answers with an error, and the
// exec has the state of one that was not started.
func (r *Runtime) killBegun(ctx context.Context, st *state, id, exec string) (begun bool, err error) {
	text, err := os.ReadFile(r.all.files(id).pidFile(exec))
	if err != nil {
		return false, errs.IgnoreNotExist(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || r.own(st.Pod, pid) == 0 {
		return true, nil //nolint:nilerr // it has ended, or it is not the pid of a process of the shim
	}
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return true, errs.IgnoreNotFound(err)
	}
	defer pidfd.Close()
	if r.own(st.Pod, pid) == 0 {
		return true, nil // another process has the pid now
	}
	var groupErr error
	if !r.handler.IsSandbox { // which has its processes in itself
		group := ociruntime.ExecGroup(st.Cgroups, exec)
		var relative map[string]string
		if relative, groupErr = group.MakeBelow(st.Cgroups); groupErr == nil {
			groupErr = errors.Join(r.gather(st.Pod, group, relative, pid), group.Kill(ctx))
		}
	}
	err = sysproc.SignalPidfd(pidfd, syscall.SIGKILL)
	if err == nil {
		err = sysproc.AwaitExit(ctx, pidfd)
	}
	return true, errors.Join(groupErr, errs.IgnoreNotFound(err))
}

// own returns pid when that is a child of the pod's shim, and 0 otherwise: the shim has reaped the process, and
// another one may have the pid.
func (r *Runtime) own(pod string, pid int) int {
	found, err := r.all.readPod(pod)
	if err != nil {
		return 0
	}
	proc, err := sysproc.ReadProc(pid)
	if err != nil || !slices.ContainsFunc(found.Processes, func(p process) bool { return p.Pid == proc.PPid }) {
		return 0
	}
	return pid
}

// Began reports whether an exec of a former supervisor has begun, and its pid, 0 when it has ended. sent is true when the
// keeper has the connection of the start: then the shim may have got the start. Kind Unavailable when it is not known whether
// the exec has begun, or when its process was killed because the shim does not know it: then it is not to be run again.
func (r *Runtime) Began(ctx context.Context, id, exec string, sent bool) (pid int, began bool, err error) {
	st, err := r.all.files(id).read()
	if err != nil {
		return 0, false, err
	}
	ctx, stop := context.WithTimeout(ctx, beganTimeout)
	defer stop()
	client, err := r.all.client(ctx, st.Pod)
	if err != nil {
		return 0, false, r.handler.fault(ctx, stageState, err)
	}
	s, err := client.State(ctx, id, exec)
	switch {
	case errors.Is(err, errs.NotFound):
		if sent {
			return 0, false, mayHaveBegun(id, exec)
		}
		return 0, false, nil
	case err != nil:
		return 0, false, r.handler.fault(ctx, stageState, err)
	case s.Status != taskapi.Created:
		return r.own(st.Pod, s.Pid), true, nil
	}
	// The shim has not got the start, has got it and failed, or has started the process and then failed to open its streams.
	begun, err := r.removeExec(ctx, client, st, id, exec)
	switch {
	case err != nil:
		return 0, false, fmt.Errorf("%w: %w", mayHaveBegun(id, exec), err)
	case begun:
		return 0, false, fmt.Errorf("exec %s in container %s: the supervisor died before the shim of handler %q had opened the streams of the command, "+
			"which was killed: %w", exec, id, r.handler.Name, errs.Unavailable)
	case sent:
		return 0, false, mayHaveBegun(id, exec)
	}
	return 0, false, nil
}

// mayHaveBegun is the error of an exec of a former supervisor, when it is not known whether it has begun.
func mayHaveBegun(id, exec string) error {
	return fmt.Errorf("exec %s in container %s: the supervisor died, and it is unknown whether the command began: %w",
		exec, id, errs.Unavailable)
}

package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	// undoTimeout bounds the kill of an exec that did not start, and then its removal.
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
		r.undoExec(ctx, client, e)
		return 0, nil, ociruntime.Classify(err, "")
	}
	if pid = r.own(st.Pod, pid); pid != 0 {
		for controller := range relative {
			// A short command may have ended.
			if err := e.Group.Sub("", controller).Gather(pid); errs.IgnoreNotFound(err) != nil && r.own(st.Pod, pid) != 0 {
				r.undoExec(ctx, client, e)
				return 0, nil, fmt.Errorf("cannot move process %d into the cgroup of its exec: %w", pid, err)
			}
		}
	}
	streams.opened(ctx)
	return pid, func() {}, nil
}

// startExec starts the process. The keeper has the connection, in the socket for the process's pidfd.
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
	pid, err = client.Start(ctx, e.ContainerID, e.ID)
	if err != nil {
		client.Abort() // the keeper has the connection: without this a start that hangs goes on, and its removal waits
	}
	return pid, err
}

// undoExec removes an exec that is not to run.
func (r *Runtime) undoExec(ctx context.Context, client *taskapi.Client, e *ociruntime.Exec) {
	if err := removeExec(ctx, client, e.ContainerID, e.ID); err != nil {
		r.all.log.Debug("a shim keeps an exec that did not start", "container", e.ContainerID, "exec", e.ID, "error", err)
	}
}

// removeExec removes an exec from a shim. Nil when there is none.
func removeExec(ctx context.Context, client *taskapi.Client, id, exec string) error {
	ctx = context.WithoutCancel(ctx)
	killing, stop := context.WithTimeout(ctx, undoTimeout)
	defer stop()
	_ = client.Kill(killing, id, exec, int(syscall.SIGKILL), true) // it may not have begun
	deleting, stop := context.WithTimeout(ctx, undoTimeout)        // a kill that hangs leaves time for it
	defer stop()
	_, err := client.Delete(deleting, id, exec)
	return errs.IgnoreNotFound(err)
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

// Began reports whether an exec of a former supervisor has begun, and its pid, 0 when it has ended. Kind
// Unavailable when that is not known: then it is not to be run again.
func (r *Runtime) Began(ctx context.Context, id, exec string) (pid int, began bool, err error) {
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
		return 0, false, nil
	case err != nil:
		return 0, false, r.handler.fault(ctx, stageState, err)
	case s.Status == taskapi.Created: // the shim has not got the start, and does not start what it does not have
		if err := removeExec(ctx, client, id, exec); err != nil {
			return 0, false, fmt.Errorf("exec %s in container %s: the supervisor died, and it is unknown whether the command began: %w: %w",
				exec, id, err, errs.Unavailable)
		}
		return 0, false, nil
	}
	return r.own(st.Pod, s.Pid), true, nil
}

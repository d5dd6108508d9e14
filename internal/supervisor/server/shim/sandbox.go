package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// A shim with the sandbox API makes the sandbox of its pod itself, without a root container. In this package, and
// for its callers, the sandbox is a container with the id of the pod, whose create and end are calls of that API. The
// other containers of the pod are those of the task API, which the shim serves at the same address.

const (
	// sandboxStopTimeout bounds the stop of a sandbox, which may be a virtual machine, until its end is reported.
	sandboxStopTimeout = 10 * time.Second
	// sandboxShutdownTimeout bounds the wait for a shim that is to end by itself.
	sandboxShutdownTimeout = 10 * time.Second
)

// The stages that errors name, by the names of the calls.
const (
	stageCreateSandbox = "CreateSandbox"
	stageStartSandbox  = "StartSandbox"
	stageSandboxState  = "SandboxStatus"
	stageStopSandbox   = "StopSandbox"
)

// isSandbox reports whether a container is a sandbox of the sandbox API.
func (r *Runtime) isSandbox(pod, id string) bool { return r.handler.SandboxAPI && pod == id }

// createSandbox starts the shim of a pod, and has it create and start the sandbox. A call that is under way ends with
// this process: the caller removes what it has made.
func (r *Runtime) createSandbox(ctx context.Context, p *ociruntime.Plan) (pid int, err error) {
	if p.Sandbox == nil {
		return 0, fmt.Errorf("handler %q: the request does not have what the sandbox API needs: %w", r.handler.Name, errs.Invalid)
	}
	st := &state{Handler: r.handler, Systemd: p.Systemd, Cgroups: p.Cgroups, Pod: p.ID}
	if err := r.all.files(p.ID).make(st, p.Spec); err != nil {
		return 0, err
	}
	if err := r.ensure(ctx, p.ID, p.Systemd, p.Spec); err != nil {
		return 0, err
	}
	client, file, err := r.all.single(ctx, p.ID)
	if err != nil {
		return 0, r.handler.fault(ctx, stageCreateSandbox, err)
	}
	defer client.Close()
	file.Close()
	err = client.CreateSandbox(ctx, &taskapi.Sandbox{
		ID: p.ID, Bundle: r.all.podDir(p.ID), Config: taskapi.Any(p.Sandbox.ConfigType, p.Sandbox.Config),
		NetNS: p.Sandbox.NetNS, Annotations: p.Spec.Annotations,
	})
	if errors.Is(err, errs.Unsupported) {
		err = fmt.Errorf(`the shim does not have the sandbox API (sandbox = "runtime" in the handler's settings uses the task API alone): %w`, err)
	}
	if err != nil {
		return 0, r.handler.fault(ctx, stageCreateSandbox, err)
	}
	if pid, err = client.StartSandbox(ctx, p.ID); err != nil {
		return 0, r.handler.fault(ctx, stageStartSandbox, err)
	}
	return r.recordSandbox(ctx, client, p.ID, pid)
}

// recordSandbox checks a sandbox that the shim has started, records its process, and returns the pid. It is the
// shim's for a sandbox without a process.
func (r *Runtime) recordSandbox(ctx context.Context, client *taskapi.Client, pod string, started int) (pid int, err error) {
	now, err := client.SandboxState(ctx, pod)
	switch {
	case err != nil:
	case now.ID != pod:
		err = fmt.Errorf("it has answered with the sandbox %.80q", now.ID)
	case now.State != taskapi.SandboxReady:
		err = fmt.Errorf("it has answered with the state %.80q of a sandbox that it has started, not %s", now.State, taskapi.SandboxReady)
	case now.Pid != started:
		err = fmt.Errorf("it has answered with the pids %d and %d", started, now.Pid)
	}
	if err != nil {
		return 0, r.handler.fault(ctx, stageSandboxState, err)
	}
	found, err := r.all.readPod(pod)
	if err != nil {
		return 0, err
	}
	if pid = started; pid == 0 {
		pid = found.Processes[0].Pid
	}
	proc, err := sysproc.ReadProc(pid)
	if err != nil || proc.Zombie() {
		return 0, r.handler.fault(ctx, stageStartSandbox, fmt.Errorf("process %d of the sandbox has ended", pid))
	}
	if !found.started(pid) {
		return 0, r.handler.fault(ctx, stageStartSandbox, fmt.Errorf("process %d is not a descendant of the shim", pid))
	}
	found.Sandbox = &process{pid, proc.Start}
	return pid, writeJSON(filepath.Join(r.all.podDir(pod), podName), found)
}

// stopSandbox ends a sandbox, and returns when the shim reports its end. When the shim does not, stopSandbox kills the
// shim and the sandbox's process. Kind NotFound when they have ended.
func (r *Runtime) stopSandbox(ctx context.Context, pod string, s *ociruntime.Signalled) error {
	if s.Signal != syscall.SIGKILL {
		return fmt.Errorf("a sandbox of the sandbox API takes no signals: %w", errs.Unsupported)
	}
	found, err := r.all.readPod(pod)
	if err != nil {
		return err
	}
	if found.Sandbox == nil { // it ends with its shim, at the removal
		return fmt.Errorf("sandbox of pod %s, which was not started: %w", pod, errs.NotFound)
	}
	if !found.lives() { // the sandbox may outlive it
		return found.kill(ctx)
	}
	asking, stop := context.WithTimeout(ctx, sandboxStopTimeout)
	defer stop()
	client, err := r.all.client(asking, pod)
	if err == nil {
		err = client.StopSandbox(asking, pod)
	}
	if err == nil {
		_, err = client.WaitSandbox(asking, pod)
	}
	if errs.IgnoreNotFound(err) == nil {
		return nil
	}
	r.all.log.Warn("a shim does not stop a sandbox; killing both", "pod", pod, "handler", r.handler.Name,
		"error", r.handler.fault(asking, stageStopSandbox, err))
	found.addDescendants()
	return found.kill(ctx)
}

// addDescendants adds the processes that the shim has started, which it would leave when it is killed.
func (p *podState) addDescendants() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !p.started(pid) {
			continue
		}
		proc, err := sysproc.ReadProc(pid)
		if err != nil {
			continue
		}
		if each := (process{pid, proc.Start}); !slices.Contains(p.Processes, each) {
			found = append(found, each)
		}
	}
	p.Processes = append(p.Processes, found...)
}

// clearSandbox removes what a shim that did not end by itself has left of its sandbox. The shim and its processes are
// dead.
func (s *Shims) clearSandbox(ctx context.Context, pod string, found *podState) {
	if err := s.Of(found.Handler).deleteByProgram(ctx, pod, s.podDir(pod)); err != nil {
		s.log.Warn("the program of a shim does not delete a sandbox", "pod", pod, "handler", found.Handler.Name, "error", err)
	}
}

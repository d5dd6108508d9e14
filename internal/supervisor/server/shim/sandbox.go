package shim

import (
	"context"
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
	"github.com/berthrun/berth/internal/probe"
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
// shim and all that it has started. Kind NotFound when they have ended.
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
		return r.all.killStarted(ctx, pod, found)
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
	return r.all.killStarted(ctx, pod, found)
}

// killStarted kills the processes of a shim, and all that it has started: the monitor and the servers of a virtual machine
// would outlive it.
func (s *Shims) killStarted(ctx context.Context, pod string, found *podState) error {
	for again := false; ; again = true { // they may start others before they are killed
		if added := s.addStarted(ctx, pod, found); again && !added {
			return nil
		}
		if err := found.kill(ctx); err != nil {
			return err
		}
	}
}

// addStarted adds to the processes of a shim those that it has started, and reports whether it has added any. They are its
// descendants, and those that have lost their parents with it, with their own.
func (s *Shims) addStarted(ctx context.Context, pod string, found *podState) (added bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.log.Error("cannot look for the processes that a shim has started", "pod", pod, "error", err)
		return false
	}
	procs := map[int]sysproc.Proc{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if proc, err := sysproc.ReadProc(pid); err == nil {
			procs[pid] = proc
		}
	}
	own := map[process]bool{}
	for _, each := range found.all() {
		own[each] = true
	}
	add := func(proc sysproc.Proc) {
		each := process{proc.Pid, proc.Start}
		own[each], added = true, true
		found.Processes = append(found.Processes, each)
	}
	reapers := map[int]bool{} // who become the parents of processes that lose theirs: the keeper and those above it
	for pid := os.Getpid(); pid != 0; pid = procs[pid].PPid {
		reapers[pid] = true
	}
	for _, proc := range procs {
		if reapers[proc.PPid] && !own[process{proc.Pid, proc.Start}] && s.isMarked(ctx, pod, proc.Pid) {
			add(proc)
		}
	}
	for grown := true; grown; {
		grown = false
		for _, proc := range procs {
			parent := procs[proc.PPid]
			if own[process{parent.Pid, parent.Start}] && !own[process{proc.Pid, proc.Start}] {
				add(proc)
				grown = true
			}
		}
	}
	return added
}

// environmentTimeout bounds the look at the environment of a process: the kernel may wait for a hung process there.
const environmentTimeout = time.Second

// isMarked reports whether a process has inherited the mark of a pod's shim.
func (s *Shims) isMarked(ctx context.Context, pod string, pid int) bool {
	path := fmt.Sprintf("/proc/%d/environ", pid)
	environment, err := probe.AskWithin(ctx, &s.probes, environmentTimeout, "read "+path, func() ([]byte, error) { return os.ReadFile(path) })
	return err == nil && slices.Contains(strings.Split(string(environment), "\x00"), markOf(s.podDir(pod)))
}

// clearSandbox removes what a shim that did not end by itself has left of its sandbox. The shim and its processes are
// dead.
func (s *Shims) clearSandbox(ctx context.Context, pod string, found *podState) {
	if err := s.Of(found.Handler).deleteByProgram(ctx, pod, s.podDir(pod)); err != nil {
		s.log.Warn("the program of a shim does not delete a sandbox", "pod", pod, "handler", found.Handler.Name, "error", err)
	}
}

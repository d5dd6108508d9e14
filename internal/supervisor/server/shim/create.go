package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/shim/sink"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/supervisor/shimoptions"
)

// Check returns an error of kind Unavailable when the program is not there, or when its file system does not answer.
func (r *Runtime) Check(ctx context.Context) error {
	return launch.Check(ctx, &r.all.probes, r.handler.Name, r.handler.Path)
}

// Plan checks the spec and computes where the container will be. It changes spec where the host does not
// allow what the spec requests. Nothing is made.
func (r *Runtime) Plan(spec *specs.Spec, request *ociruntime.PlanRequest) (*ociruntime.Plan, error) {
	if _, err := podOf(request.ID, spec); err != nil {
		return nil, err
	}
	here := *request
	here.NoOwnInit = true
	plan, err := r.all.base.Plan(spec, &here)
	if err != nil {
		return nil, err
	}
	plan.Starter, plan.Reason = "handler "+r.handler.Name, ""
	return plan, nil
}

// Create makes the container up to the point where its init waits for Start, and returns the init's pid. See
// ociruntime.Runtime.Create for errors.
func (r *Runtime) Create(ctx context.Context, p *ociruntime.Plan, io *ociruntime.StdIO) (pid int, release func(), err error) {
	pod, err := podOf(p.ID, p.Spec)
	if err != nil {
		return 0, nil, err
	}
	if err := os.MkdirAll(r.handler.Root, 0o700); err != nil {
		return 0, nil, fmt.Errorf("cannot make the directory of handler %q: %w", r.handler.Name, err)
	}
	if r.isSandbox(pod, p.ID) {
		pid, err = r.createSandbox(ctx, p)
		return pid, func() {}, err
	}
	options, err := r.options(shimoptions.Values{Systemd: p.Systemd, UID: p.UID, GID: p.GID})
	if err != nil {
		return 0, nil, err
	}
	f := r.all.files(p.ID)
	if err := f.make(&state{Handler: r.handler, Systemd: p.Systemd, Cgroups: p.Cgroups, Pod: pod}, p.Spec); err != nil {
		return 0, nil, err
	}
	if !r.handler.SandboxAPI { // else the sandbox has its shim, and another shim does not have the sandbox
		if err := r.ensure(ctx, pod, p.Systemd, p.Spec); err != nil {
			return 0, nil, err
		}
	}
	client, file, err := r.all.single(ctx, pod)
	if err != nil {
		return 0, nil, r.handler.fault(ctx, stageCreate, err)
	}
	defer client.Close()
	defer r.hold(ctx, p.ID, file)()
	streams, err := r.streamsOf(pod, p.ID, "", io)
	if err != nil {
		return 0, nil, err
	}
	defer streams.close()
	pid, err = client.Create(ctx, p.ID, f.dir, streams.paths, options)
	if err == nil {
		err = r.checkCreated(ctx, client, p, pid)
		if err == nil {
			err = r.checkProcess(pod, p, pid)
		}
	}
	if err != nil {
		return 0, nil, ociruntime.Classify(r.handler.fault(ctx, stageCreate, err), p.Spec.Root.Path)
	}
	streams.opened(ctx)
	return pid, func() {}, nil
}

// hold lets the create of a container in a sandbox go on when the supervisor dies or the caller gives up, and closes file,
// a descriptor of its connection. gVisor's program that is killed in a create leaves a file that no later call to the
// sandbox can read. The removal of the container waits for the end of the create. The result ends the hold.
func (r *Runtime) hold(ctx context.Context, id string, file *os.File) (end func()) {
	defer file.Close()
	if !r.handler.IsSandbox {
		return func() {}
	}
	path := filepath.Join(r.all.files(id).dir, creatingName)
	var held *sink.Held
	err := os.WriteFile(path, nil, 0o600)
	if err == nil {
		held, err = sink.Hold(ctx, r.all.dir, file)
	}
	if err != nil {
		_ = os.Remove(path)
		r.all.log.Warn("the create of a container ends with the supervisor", "container", id, "handler", r.handler.Name, "error", err)
		return func() {}
	}
	return func() {
		if ctx.Err() != nil {
			held.Leave()
			return
		}
		held.Release()
		_ = os.Remove(path) // with it, a removal waits longer than it needs to
	}
}

// creatingName is a file in the directory of a container whose create may be under way without a caller.
const creatingName = "berth-creating"

// patience is how long a shim may take to answer for a container, usually d: while it creates the container, it does not
// answer for it.
func (f files) patience(d time.Duration) time.Duration {
	if _, err := os.Lstat(filepath.Join(f.dir, creatingName)); err == nil {
		return d + sink.HoldTime
	}
	return d
}

// checkCreated refuses a container that is not the one that was asked for.
func (r *Runtime) checkCreated(ctx context.Context, client *taskapi.Client, p *ociruntime.Plan, pid int) error {
	if pid <= 0 {
		return fmt.Errorf("it has answered with the pid %d", pid)
	}
	st, err := client.State(ctx, p.ID, "")
	switch {
	case err != nil:
		return fmt.Errorf("its state: %w", err)
	case st.ID != p.ID:
		return fmt.Errorf("it has answered with the state of %.80q", st.ID)
	case st.Pid != pid:
		return fmt.Errorf("it has answered with the pids %d and %d", pid, st.Pid)
	case st.Status != taskapi.Created:
		return fmt.Errorf("it has answered with the status %d, which is not that of a created container", st.Status)
	}
	return nil
}

// checkProcess refuses an init that berth could not stop without the shim: processes are found by the container's
// cgroup. A sandbox is elsewhere, and must be the shim or a descendant of it: berth kills it.
func (r *Runtime) checkProcess(pod string, p *ociruntime.Plan, pid int) error {
	if r.handler.IsSandbox {
		found, err := r.all.readPod(pod)
		if err == nil && !found.started(pid) {
			err = fmt.Errorf("process %d is not a descendant of the shim", pid)
		}
		return err
	}
	pids, err := p.Cgroups.Pids()
	if err != nil {
		return err
	}
	if !slices.Contains(pids, pid) {
		return fmt.Errorf(`process %d is not in the container's cgroup %s (a runtime that is the sandbox itself needs sandbox = "runtime" in the handler's settings)`,
			pid, p.Cgroups.Name())
	}
	return nil
}

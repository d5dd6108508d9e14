package ocicommand

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

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Check returns an error of kind Unavailable when the program is not there, or when its file system does not answer.
func (r *Runtime) Check(ctx context.Context) error {
	return launch.Check(ctx, &r.all.probes, r.program.Name, r.program.Path)
}

// Plan checks the spec and computes where the container will be. It changes spec where the host does
// not allow what the spec requests. Nothing is made.
func (r *Runtime) Plan(spec *specs.Spec, request *ociruntime.PlanRequest) (*ociruntime.Plan, error) {
	here := *request
	here.NoOwnInit = true
	plan, err := r.all.base.Plan(spec, &here)
	if err != nil {
		return nil, err
	}
	plan.Starter, plan.Reason = "handler "+r.program.Name, ""
	return plan, nil
}

// Create makes the container up to the point where its init waits for Start, and returns the init's
// pid. The init is not reaped before release is called. See ociruntime.Runtime.Create for errors.
func (r *Runtime) Create(ctx context.Context, p *ociruntime.Plan, io *ociruntime.StdIO) (pid int, release func(), err error) {
	if err := os.MkdirAll(r.program.Root, 0o700); err != nil {
		return 0, nil, fmt.Errorf("cannot make the directory of handler %q: %w", r.program.Name, err)
	}
	f := r.all.files(p.ID)
	if err := f.make(&state{Program: r.program, Systemd: p.Systemd, Cgroups: p.Cgroups, Restored: p.Restore != nil}, p.Spec); err != nil {
		return 0, nil, err
	}
	args, env, apart := []string{"create"}, environment(), ""
	if p.Restore != nil {
		apart = "_ses." + p.ID // as runc names it, which gives one to a container that it does not restore
		var err error
		if args, env, err = r.prepareRestore(ctx, f, p); err != nil {
			return 0, nil, err
		}
	}
	args = append(args, "--bundle", f.bundle(), "--pid-file", filepath.Join(f.dir, pidName))
	if io.Console != nil {
		args = append(args, "--console-socket", launch.ConsolePlace)
	}
	begun, err := r.launch(ctx, &launching{
		stage: stageCreate, dir: f.dir, lock: filepath.Join(f.dir, lockName), pidFile: filepath.Join(f.dir, pidName), io: io, oomScoreAdj: p.Spec.Process.OOMScoreAdj,
		env: env, apart: apart, log: f.log(stageCreate), args: r.arguments(p.Systemd, f.log(stageCreate), append(args, p.ID)...),
	})
	if err != nil {
		return 0, nil, ociruntime.Classify(err, p.Spec.Root.Path)
	}
	if err := r.checkCreated(p, begun.Pid); err != nil {
		begun.Abandon()
		return 0, nil, err
	}
	return begun.Pid, begun.Release, nil
}

// pidName is the file with the pid of a container's init.
const pidName = "init.pid"

// checkCreated refuses a container that berth could not stop without the program: its processes are found
// by its cgroup.
func (r *Runtime) checkCreated(p *ociruntime.Plan, pid int) error {
	pids, err := p.Cgroups.Pids()
	if err != nil {
		return err
	}
	if !slices.Contains(pids, pid) {
		return r.fault(stageCreate, fmt.Errorf("process %d is not in the container's cgroup %s", pid, p.Cgroups.Name()))
	}
	return nil
}

// Exec starts a process in a running container and returns its pid. The process is not reaped before
// release is called. See ociruntime.Runtime.Exec.
func (r *Runtime) Exec(ctx context.Context, e *ociruntime.Exec) (pid int, release func(), err error) {
	if err := r.Check(ctx); err != nil {
		return 0, nil, err
	}
	f := r.all.files(e.ContainerID)
	st, err := f.read()
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
	dir, err := os.MkdirTemp(f.dir, "exec-")
	if err != nil {
		return 0, nil, fmt.Errorf("cannot make the directory of an exec: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	data, err := json.Marshal(e.Process)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot encode the process: %w", err)
	}
	process, pidFile, log := filepath.Join(dir, "process.json"), filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	if err := os.WriteFile(process, data, 0o600); err != nil {
		return 0, nil, fmt.Errorf("cannot write the process: %w", err)
	}
	args := []string{"exec", "--detach", "--process", process, "--pid-file", pidFile}
	if e.StdIO.Console != nil {
		args = append(args, "--console-socket", launch.ConsolePlace)
	}
	relative, err := e.Group.MakeBelow(st.Cgroups)
	if err != nil {
		return 0, nil, err
	}
	var covers map[string]string
	inGroup := r.groups(ctx).all(relative)
	if inGroup {
		args = append(args, groupArguments(relative)...)
	} else {
		covers = coversOf(st.Cgroups, relative)
	}
	begun, err := r.launch(ctx, &launching{
		stage: stageExec, dir: dir, pidFile: pidFile, io: &e.StdIO, oomScoreAdj: oomScoreAdjOf(e), pidfd: e.Pidfd, persist: true,
		covers: covers, log: log, args: r.arguments(st.Systemd, log, append(args, e.ContainerID)...),
	})
	if err != nil {
		return 0, nil, ociruntime.Classify(err, "")
	}
	if !inGroup {
		if err := gather(e.Group, relative, begun.Pid); err != nil {
			begun.Abandon()
			return 0, nil, err
		}
	}
	return begun.Pid, begun.Release, nil
}

// groupArguments select the cgroup of an exec.
func groupArguments(relative map[string]string) []string {
	var args []string
	for controller, dir := range relative {
		if controller != "" {
			dir = controller + ":" + dir
		}
		args = append(args, "--cgroup", dir)
	}
	return args
}

// oomScoreAdjOf returns the score of the container's init, which an exec gets, too.
func oomScoreAdjOf(e *ociruntime.Exec) *int {
	if e.Process.OOMScoreAdj != nil {
		return e.Process.OOMScoreAdj
	}
	score := scoreOf(e.Init)
	return &score
}

// scoreOf returns the oom_score_adj of the process of a pidfd, 0 when it is not known.
func scoreOf(pidfd *os.File) int {
	if pidfd == nil {
		return 0
	}
	pid, err := sysproc.PidfdPid(pidfd)
	if err != nil {
		return 0
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		return 0
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return score
}

// coversOf returns what makes a program start an exec in its cgroups of v1, when no option of the program does: the
// program finds the cgroup of the exec at the path of the container's. So the command is never in another one,
// and a kill of the cgroup kills all that it has started. In the hierarchy of v2, runc opens nothing on another mount.
func coversOf(container cgroup.Paths, relative map[string]string) map[string]string {
	covers := make(map[string]string, len(relative))
	for controller, dir := range relative {
		if controller == "" {
			continue
		}
		covers[container[controller]] = filepath.Join(container[controller], dir)
	}
	return covers
}

// gather moves a process and its children into the cgroup of an exec: in the hierarchy of v2, and for a program that finds
// the container's cgroup by another path than berth. A child that has lost its parent before is not found.
func gather(group cgroup.Paths, relative map[string]string, pid int) error {
	for controller := range relative {
		if err := group.Sub("", controller).Gather(pid); err != nil {
			return fmt.Errorf("cannot move process %s into the cgroup of its exec: %w", strconv.Itoa(pid), err)
		}
	}
	return nil
}

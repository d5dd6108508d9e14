package native

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/faultfield"
	"github.com/berthrun/berth/internal/engine/native/checkpoint"
	"github.com/berthrun/berth/internal/engine/native/checkpoint/restoring"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/engine/native/volume"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Start executes the user's program.
func (e *Engine) Start(ctx context.Context, id string) (pid int, err error) {
	pid, err = e.cfg.Supervisor.Start(ctx, id)
	if err != nil {
		return 0, e.startFault(ctx, id, err)
	}
	if e.cfg.CgroupDriver == podcgroup.Systemd {
		e.rejoin(id, pid)
	}
	return pid, nil
}

// startFault adds the OCI hook that the error of a start is about.
func (e *Engine) startFault(ctx context.Context, id string, err error) error {
	spec, readErr := e.bundles.ReadSpec(id)
	if readErr != nil {
		return err
	}
	return e.withHook(ctx, spec.Hooks, err)
}

// rejoin brings the processes of a container back into its cgroup if systemd has moved them out; see
// cgroup.Tree.Rejoin. A container that has ended needs it no more.
func (e *Engine) rejoin(id string, pid int) {
	moved, err := e.tree.Rejoin(pid, id)
	if moved {
		e.log.Info("systemd has moved processes of a container out of its cgroup; they are moved back", "container", id, "pid", pid)
	}
	if errs.IgnoreNotFound(err) != nil {
		e.log.Warn("cannot move the processes of a container back into its cgroup", "container", id, "error", err)
	}
}

// Signal sends sig to the container's init, or to all its processes.
func (e *Engine) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	return e.cfg.Supervisor.Signal(ctx, id, sig, all)
}

// Update changes the container's limits.
func (e *Engine) Update(ctx context.Context, id string, res *runtimeapi.LinuxContainerResources) error {
	limits, err := ocispec.Update(request.FieldUpdate, res, e.host)
	if err != nil {
		return err
	}
	if err := e.cfg.Supervisor.Update(ctx, id, limits); err != nil {
		return faultfield.Limit(request.FieldUpdate, err)
	}
	return nil
}

// ReopenLog switches the container's log to a new file.
func (e *Engine) ReopenLog(ctx context.Context, id string) error {
	return e.cfg.Supervisor.ReopenLog(ctx, id)
}

// Checkpoint implements engine.Checkpointer.
func (e *Engine) Checkpoint(ctx context.Context, spec *engine.CheckpointSpec) error {
	if !e.rules().Checkpoints {
		return fmt.Errorf("checkpoints are off (checkpoint.enabled of the configuration): %w", errs.Unsupported)
	}
	oci, err := e.ContainerSpec(ctx, spec.ContainerID, spec.Resources)
	if err != nil {
		return err
	}
	running, err := e.runningContainer(ctx, spec.ContainerID)
	if err != nil {
		return err
	}
	if running.InSandbox {
		return fmt.Errorf("its processes are in the sandbox of %s, which CRIU does not see: %w", running.Starter, errs.State)
	}
	pidfd, err := sysproc.OpenPidfd(running.Pid)
	if err != nil {
		return fmt.Errorf("its init has ended: %w: %w", err, errs.State)
	}
	defer pidfd.Close()
	// While the supervisor has it as running, the pid is not that of another process.
	if again, err := e.runningContainer(ctx, spec.ContainerID); err != nil {
		return err
	} else if again.Pid != running.Pid {
		return fmt.Errorf("its init has ended: %w", errs.State)
	}
	return checkpoint.Write(ctx, e.criu.Load(), &checkpoint.Container{
		Pidfd: pidfd, Pid: running.Pid, Spec: oci, Dir: spec.Dir, Location: spec.Location, Reached: spec.Reached,
		Config: checkpoint.Config{
			ID: spec.ContainerID, Name: spec.Name, RootfsImage: spec.ImageID, RootfsImageRef: spec.ImageRef, RootfsImageName: spec.ImageName,
			Runtime: running.Starter, CreatedAt: spec.CreatedAt,
		},
	})
}

// CheckRestore implements engine.Restorer.
func (e *Engine) CheckRestore(requested *engine.Sandbox, name string) error {
	rules := e.rules()
	h, err := rules.Handlers.Find(name)
	if requested != nil {
		var sb *sandbox
		if sb, err = sandboxOf(requested); err == nil {
			h = sb.Handler
		}
	}
	switch {
	case err != nil:
		return err
	case !rules.Checkpoints:
		return fmt.Errorf("checkpoints are off (checkpoint.enabled of the configuration): %w", errs.Unsupported)
	case rules.restorer(h).Program().Protocol != supervisor.ProtocolCommand:
		return fmt.Errorf("handler %q of the pod is a shim, and only runc restores checkpoints: %w", name, errs.Unsupported)
	}
	return nil
}

// restorer is the OCI runtime that restores containers of a sandbox with a handler: that of the handler, or the one of the
// configuration.
func (r *Rules) restorer(h *handler.Handler) *handler.Handler {
	if h.Program() != nil {
		return h
	}
	return &r.Restorer
}

// checkRestorer asks CRIU and the OCI runtime whether they work. Kind Unsupported when one does not.
func (e *Engine) checkRestorer(ctx context.Context, sb *sandbox) error {
	if _, err := e.criu.Load().Now(ctx); err != nil {
		return err
	}
	h := e.rules().restorer(sb.Handler)
	facts := e.programs.Now(ctx, h)
	switch err := e.programs.Check(ctx, h); {
	case err != nil:
		return fmt.Errorf("%v: %w", err, errs.Unsupported) //nolint:errorlint // the kind is Unsupported alone: another attempt fails, too
	case facts.Broken:
		return fmt.Errorf("unable to get OCI runtime: %s: %w", facts.Fault, errs.Unsupported)
	case !strings.HasPrefix(facts.Version, "runc "):
		return fmt.Errorf("handler %q: only runc restores checkpoints, and %s is %q: %w", h.Name, h.Path, facts.Version, errs.Unsupported)
	}
	return nil
}

// ReadCheckpoint implements engine.Restorer.
func (e *Engine) ReadCheckpoint(ctx context.Context, spec *engine.RestoreSpec) (base []string, err error) {
	sb, err := sandboxOf(spec.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := e.checkRestorer(ctx, sb); err != nil {
		return nil, err
	}
	from := ""
	if spec.ImageID != "" {
		// It is mounted until the sandbox is stopped.
		dirs, err := volume.Images{Rootfs: e.cfg.Rootfs}.Mount(ctx, volume.Sandbox{
			ID: spec.SandboxSpec.ID, Dir: e.sandboxPaths(spec.SandboxSpec.ID).volumes, MountLabel: sb.MountLabel,
		}, []*runtimeapi.Mount{{Image: &runtimeapi.ImageSpec{Image: spec.ImageID}}}, map[int]string{0: spec.ImageID})
		if err != nil {
			return nil, err
		}
		from = dirs[0]
	}
	return restoring.Files(spec.Dir).Read(ctx, spec.Location, from, spec.Name)
}

// checkRestored checks the processes that the supervisor has restored, and which are stopped. createErr is its error.
// The caller removes the container after an error.
func (e *Engine) checkRestored(c *creation, made *supervisor.Container, createErr error) error {
	files := restoring.Files(c.Restored)
	if createErr != nil {
		return files.Cause(createErr)
	}
	if err := restoring.Check(made.Pid, c.oci, made.CgroupPaths); err != nil {
		return err
	}
	return files.Remove()
}

// runningContainer returns what the supervisor says of a running container. Kind State when it does not run.
func (e *Engine) runningContainer(ctx context.Context, id string) (*supervisor.Container, error) {
	list, err := e.cfg.Supervisor.List(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list, func(c supervisor.Container) bool { return c.ID == id })
	if at < 0 || list[at].State != supervisor.Running {
		return nil, fmt.Errorf("it does not run: %w", errs.State)
	}
	return &list[at], nil
}

// Exec runs a command as the container's own process would run: same user,
// environment, directory and capabilities.
func (e *Engine) Exec(ctx context.Context, spec *engine.ExecSpec) (code int32, err error) {
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return 0, fmt.Errorf("cannot exec in container %s: no command specified: %w", spec.ContainerID, errs.Invalid)
	}
	if e.rules().NoOwnInit {
		e.warmer.Warm() // libcontainer migrates the process
	}
	own, err := e.bundles.ReadProcess(spec.ContainerID)
	if err != nil {
		return 0, err
	}
	resize, stop := forwardSizes(spec.Resize)
	defer stop()
	return e.cfg.Supervisor.Exec(ctx,
		&supervisor.ExecRequest{ContainerID: spec.ContainerID, Process: ocispec.ExecProcess(own, spec.Command, spec.TTY)},
		supervisor.Streams{Stdin: spec.Stdin, Stdout: spec.Stdout, Stderr: spec.Stderr, Resize: resize})
}

// Attach connects streams to a running container.
func (e *Engine) Attach(ctx context.Context, spec *engine.AttachSpec) error {
	resize, stop := forwardSizes(spec.Resize)
	defer stop()
	return e.cfg.Supervisor.Attach(ctx, spec.ContainerID,
		supervisor.Streams{Stdin: spec.Stdin, Stdout: spec.Stdout, Stderr: spec.Stderr, Resize: resize})
}

// forwardSizes converts terminal sizes to the supervisor's type, until stop.
func forwardSizes(from <-chan engine.TerminalSize) (to <-chan supervisor.TerminalSize, stop func()) {
	if from == nil {
		return nil, func() {}
	}
	out, done := make(chan supervisor.TerminalSize), make(chan struct{})
	go func() {
		defer close(out)
		for {
			select {
			case size, ok := <-from:
				if !ok {
					return
				}
				select {
				case out <- supervisor.TerminalSize{Width: size.Width, Height: size.Height}:
				case <-done:
					return
				}
			case <-done:
				return
			}
		}
	}()
	return out, func() { close(done) }
}

// CheckContainer implements engine.Engine: this engine honours what an OCI spec can express.
func (e *Engine) CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	return check.Container(e.withoutHandlers(config), sandbox)
}

// CheckResources implements engine.Engine.
func (e *Engine) CheckResources(field string, limits *runtimeapi.LinuxContainerResources) error {
	return check.Resources(field, limits)
}

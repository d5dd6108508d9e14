package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/execstate"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/hooks"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// libcontainerStarter starts processes with runc's library, in this process.
type libcontainerStarter struct {
	root    string
	zombies *zombieReaper
	// converting is held while configOf uses a list that all containers of the process share.
	converting sync.Mutex
}

// libcontainerPlan is the payload of its plans.
type libcontainerPlan struct {
	config  *configs.Config
	process *libcontainer.Process
	cgroups cgroups.Manager
}

func (l *libcontainerStarter) plan(p *Plan, spec *specs.Spec, request *PlanRequest) error {
	config, err := l.configOf(&specconv.CreateOpts{
		CgroupName:       p.ID,
		UseSystemdCgroup: request.Systemd,
		Spec:             spec,
	})
	if err != nil {
		return fmt.Errorf("cannot use the spec of container %s: %w", p.ID, withCause(fmt.Errorf("%w: %w", err, errs.Invalid), ""))
	}
	setBundle(config, request.Bundle)
	delete(config.Hooks, configs.Poststart) // see Plan.Hooks
	delete(config.Hooks, configs.Poststop)
	process, err := newProcess(spec.Process)
	if err != nil {
		return fmt.Errorf("cannot use the process of container %s: %w", p.ID, err)
	}
	process.Init = true
	if p.UID, err = config.HostUID(process.UID); err != nil {
		return fmt.Errorf("cannot use the user of container %s: %w: %w", p.ID, err, errs.Invalid)
	}
	if p.GID, err = config.HostGID(process.GID); err != nil {
		return fmt.Errorf("cannot use the group of container %s: %w: %w", p.ID, err, errs.Invalid)
	}
	cm, err := manager.New(config.Cgroups)
	if err != nil {
		return fmt.Errorf("cannot use the cgroup of container %s: %w: %w", p.ID, err, errs.Invalid)
	}
	p.Cgroups = maps.Clone(cm.GetPaths()) // the manager empties its own
	p.payload = &libcontainerPlan{config, process, cm}
	p.Starter = Name
	return nil
}

// configOf converts a spec. specconv puts the devices that every container has, which are one list for the
// whole process, into the configuration, and makes root of a container's user namespace the owner of
// the listed devices. Other containers would get devices with that owner. So the container gets
// copies, and the list stays as it was.
func (l *libcontainerStarter) configOf(opts *specconv.CreateOpts) (*configs.Config, error) {
	l.converting.Lock()
	defer l.converting.Unlock()
	before := make([]devices.Device, len(specconv.AllowedDevices))
	for i, device := range specconv.AllowedDevices {
		before[i] = *device
	}
	config, err := specconv.CreateLibcontainerConfig(opts)
	if err == nil {
		for i, device := range config.Devices {
			own := *device
			config.Devices[i] = &own
		}
	}
	for i, device := range specconv.AllowedDevices {
		*device = before[i]
	}
	return config, err
}

func (l *libcontainerStarter) create(ctx context.Context, p *Plan, io *StdIO) (pid int, err error) {
	return startOwnProgram(ctx,
		func() (int, error) { return l.startInit(ctx, p, io) },
		func() error { return os.RemoveAll(filepath.Join(l.root, p.ID)) })
}

func (l *libcontainerStarter) startInit(ctx context.Context, p *Plan, io *StdIO) (pid int, err error) {
	plan := p.payload.(*libcontainerPlan)
	runHooks(ctx, plan.config, p.Spec.Hooks)
	c, err := makeState(l.root, p.ID, plan.config)
	if err != nil {
		return 0, err
	}
	io.apply(plan.process)
	if err := within(ctx, p.Cgroups, plan.process, func() error { return startFault(c.Start(plan.process)) }); err != nil {
		return 0, classify(withHook(err, p.Spec.Hooks), plan.config.Rootfs)
	}
	if pid, err = plan.process.Pid(); err != nil {
		return 0, fmt.Errorf("cannot learn the pid of container %s: %w", p.ID, err)
	}
	return pid, p.Cgroups.EndInheritance()
}

// runHooks has this package run the hooks of the host that libcontainer would run itself in a create.
func runHooks(ctx context.Context, config *configs.Config, all *specs.Hooks) {
	if all == nil {
		return
	}
	for stage, list := range map[configs.HookName][]specs.Hook{
		configs.Prestart:      all.Prestart, //nolint:staticcheck // older tools still use it
		configs.CreateRuntime: all.CreateRuntime,
	} {
		if len(list) == 0 {
			continue
		}
		run := make(configs.HookList, len(list))
		for i := range list {
			run[i] = configs.NewFunctionHook(func(state *specs.State) error { return hooks.RunOne(ctx, &list[i], state) })
		}
		config.Hooks[stage] = run
	}
}

// makeState makes the state directory of a new container, and checks its configuration and its cgroup.
func makeState(root, id string, config *configs.Config) (*libcontainer.Container, error) {
	c, err := libcontainer.Create(root, id, config)
	switch {
	case errors.Is(err, libcontainer.ErrExist), errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("container %s: %w", id, errs.Exists)
	case errors.Is(err, libcontainer.ErrInvalidID):
		return nil, fmt.Errorf("container id %q: %w", id, errs.Invalid)
	case err != nil:
		return nil, classify(err, config.Rootfs)
	}
	return c, nil
}

func (l *libcontainerStarter) exec(ctx context.Context, e *Exec, s *execstate.State) (pid int, err error) {
	return startOwnProgram(ctx,
		func() (int, error) { return l.startExec(ctx, e, s) },
		func() error { return nil })
}

func (l *libcontainerStarter) startExec(ctx context.Context, e *Exec, s *execstate.State) (pid int, err error) {
	c, err := load(l.root, e.ContainerID)
	if err != nil {
		return 0, err
	}
	process, err := newProcess(e.Process)
	if err != nil {
		return 0, err
	}
	if process.SubCgroupPaths, err = e.Group.MakeBelow(s.Cgroups); err != nil {
		return 0, err
	}
	if err := giveStreams(c.Config(), process.UID, process.GID, &e.StdIO); err != nil {
		return 0, err
	}
	process.PidfdSocket = e.Pidfd
	e.StdIO.apply(process)
	if err := within(ctx, e.Group, process, func() error { return c.Start(process) }); err != nil {
		l.zombies.reapSoon()
		return 0, classify(err, "")
	}
	return process.Pid()
}

// killedTimeout bounds the wait for libcontainer to notice that its init was killed.
const killedTimeout = 10 * time.Second

// within runs a start of libcontainer, which takes no context. When ctx ends first it kills what the
// start has put into the cgroup, again and again: the start ends when its init does.
func within(ctx context.Context, group cgroup.Paths, process *libcontainer.Process, start func() error) error {
	done := make(chan error, 1)
	go func() { done <- start() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), killedTimeout)
	defer stop()
	for {
		killErr := group.Kill(late)
		select {
		case err := <-done:
			if err == nil {
				// The start succeeded at the last moment: its process is dead, or will be.
				err = reap(process)
			}
			return fmt.Errorf("%w (%w)", cause(ctx), err)
		case <-late.Done():
			return fmt.Errorf("%w, and its processes do not die: %w", cause(ctx), errors.Join(killErr, errs.Deadline))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// reap kills and reaps a process whose start was too late. A zombie in a container's PID namespace
// keeps the container's init from ending.
func reap(process *libcontainer.Process) error {
	if err := process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot kill the process: %w", err)
	}
	if _, err := process.Wait(); err != nil {
		var ended *exec.ExitError // a killed process is an error to Wait
		if !errors.As(err, &ended) {
			return fmt.Errorf("cannot reap the process: %w", err)
		}
	}
	return errors.New("the process was killed")
}

// cause returns why ctx ended, with a kind.
func cause(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the runtime took too long: %w", errs.Deadline)
	}
	return ctx.Err()
}

// giveStreams makes the user of a process in a user namespace the owner of its streams, since the
// process may open them again (/dev/stdout). Inside of the namespace that is not allowed: the streams
// belong to the host's root.
func giveStreams(config configs.Config, user, group int, io *StdIO) error {
	if !config.Namespaces.Contains(configs.NEWUSER) {
		return nil
	}
	uid, err := config.HostUID(user)
	if err != nil {
		return fmt.Errorf("cannot use the user: %w: %w", err, errs.Invalid)
	}
	gid, err := config.HostGID(group)
	if err != nil {
		return fmt.Errorf("cannot use the group: %w: %w", err, errs.Invalid)
	}
	for _, f := range []*os.File{io.Stdin, io.Stdout, io.Stderr} {
		if f == nil {
			continue
		}
		if err := f.Chown(uid, gid); err != nil {
			return fmt.Errorf("cannot give a stream to the process: %w", err)
		}
	}
	return nil
}

// setBundle corrects the label with the bundle, which specconv takes from the current directory. runc
// list and runc state show it.
func setBundle(config *configs.Config, bundle string) {
	for i, label := range config.Labels {
		if strings.HasPrefix(label, "bundle=") {
			config.Labels[i] = "bundle=" + bundle
		}
	}
}

// startOwnProgram calls start, which lets libcontainer start this process's own program as
// an init. libcontainer opens the program's file by the path that /proc/self/exe shows. If
// an upgrade replaces the file between these two steps, the init is another program and the
// start fails. startOwnProgram then calls undo, and start again: libcontainer finds that the
// path has changed and takes a copy of the running program.
func startOwnProgram(ctx context.Context, start func() (pid int, err error), undo func() error) (pid int, err error) {
	before, err := ownPath()
	if err != nil {
		return 0, err
	}
	pid, err = start()
	if err == nil || errs.Kind(err) != nil || ctx.Err() != nil {
		return pid, err
	}
	if now, readErr := ownPath(); readErr != nil || now == before {
		return 0, err
	}
	if undoErr := undo(); undoErr != nil {
		return 0, fmt.Errorf("%w, and the program of this process was replaced: %w", err, undoErr)
	}
	return start()
}

// ownPath returns the path of this process's program. It ends in " (deleted)" once another
// file has taken its place.
func ownPath() (string, error) {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("cannot find this process's program: %w", err)
	}
	return path, nil
}

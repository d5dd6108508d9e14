package ociruntime

import (
	"context"
	"fmt"
	"os"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Exec is a process to be run in a running container.
type Exec struct {
	ContainerID string
	Process     *specs.Process
	StdIO       StdIO
	// Pidfd is a unix socket on which the process sends its own pidfd before
	// any code of the user's runs.
	Pidfd *os.File
	// Group is a cgroup below the container's that is made for this process
	// alone, so that all that it starts can be found: see ExecGroup. Empty for
	// none.
	Group cgroup.Paths
}

// Exec starts the process and returns its pid, a child of this process. When ctx
// ends first, what was started is killed. It leaves Group behind, also on error.
func (r *Runtime) Exec(ctx context.Context, e *Exec) (pid int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c, err := r.load(e.ContainerID)
	if err != nil {
		return 0, err
	}
	found, err := r.found(c)
	if err != nil {
		return 0, err
	}
	// Start would wait until somebody thaws the container.
	paused, err := found.Cgroups.Frozen()
	if err != nil {
		return 0, fmt.Errorf("cannot exec in container %s: %w", e.ContainerID, err)
	}
	if err := checkRunning(e.ContainerID, found, paused); err != nil {
		return 0, fmt.Errorf("cannot exec: %w", err)
	}
	r.host.FitProcess(e.Process)
	process, err := newProcess(e.Process)
	if err != nil {
		return 0, fmt.Errorf("cannot exec in container %s: %w", e.ContainerID, err)
	}
	if process.SubCgroupPaths, err = e.Group.MakeBelow(found.Cgroups); err != nil {
		return 0, fmt.Errorf("cannot exec in container %s: %w", e.ContainerID, err)
	}
	if err := giveStreams(c.Config(), process, &e.StdIO); err != nil {
		return 0, fmt.Errorf("cannot exec in container %s: %w", e.ContainerID, err)
	}
	process.PidfdSocket = e.Pidfd
	e.StdIO.apply(process)
	kill := e.Group
	if err := within(ctx, kill, process, func() error { return c.Start(process) }); err != nil {
		r.forgotten.reapSoon()
		return 0, classify(fmt.Errorf("cannot exec in container %s: %w", e.ContainerID, err), "")
	}
	return process.Pid()
}

// giveStreams gives the streams to the user of a process in a user namespace, who
// may want to open them again (/dev/stdout). libcontainer does it from inside, where
// it may not: they belong to the host's root.
func giveStreams(config configs.Config, process *libcontainer.Process, io *StdIO) error {
	if !config.Namespaces.Contains(configs.NEWUSER) {
		return nil
	}
	uid, err := config.HostUID(process.UID)
	if err != nil {
		return fmt.Errorf("cannot use the user: %w: %w", err, errs.Invalid)
	}
	gid, err := config.HostGID(process.GID)
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

// ExecGroupPrefix begins the name of each exec's cgroup.
const ExecGroupPrefix = "berth-exec-"

// ExecGroup names the cgroup of one exec. On v1 one hierarchy is enough to find
// processes, and each join costs; the freezer's is taken, since a kill must thaw.
func ExecGroup(container cgroup.Paths, execID string) cgroup.Paths {
	for _, controller := range []string{"freezer", "pids", "name=systemd", ""} {
		if _, v1 := container["devices"]; controller == "" && v1 {
			continue // the key "" would mean all hierarchies to libcontainer
		}
		if sub := container.Sub(ExecGroupPrefix+execID, controller); len(sub) > 0 {
			return sub
		}
	}
	return nil
}

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// giveUp bounds the wait for libcontainer to notice that its init was killed.
const giveUp = 10 * time.Second

// Create makes the container up to the point where its init waits to execute the
// user's program, and returns the init's pid, a child of this process. When ctx
// ends first, everything that was started is killed. On error the caller undoes by Remove;
// the error is a *ProgramError when it is the program's fault, and has an errs.Fault where
// libcontainer names the part of the container. No two calls for one id may run at a time.
func (r *Runtime) Create(ctx context.Context, p *Plan, io *StdIO) (pid int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c, err := libcontainer.Create(r.root, p.ID, p.config)
	switch {
	case errors.Is(err, libcontainer.ErrExist), errors.Is(err, fs.ErrExist):
		return 0, fmt.Errorf("container %s: %w", p.ID, errs.Exists)
	case errors.Is(err, libcontainer.ErrInvalidID):
		return 0, fmt.Errorf("container id %q: %w", p.ID, errs.Invalid)
	case err != nil:
		return 0, classify(err, p.config.Rootfs)
	}
	io.apply(p.process)
	if err := within(ctx, p.Cgroups, p.process, func() error { return startFault(c.Start(p.process)) }); err != nil {
		return 0, classify(err, p.config.Rootfs)
	}
	if pid, err = p.process.Pid(); err != nil {
		return 0, fmt.Errorf("cannot learn the pid of container %s: %w", p.ID, err)
	}
	return pid, nil
}

// within runs a start of libcontainer's, which knows no context. When ctx ends
// first it kills what the start put into the cgroup, again and again, for the
// start ends when its init does.
func within(ctx context.Context, group cgroup.Paths, process *libcontainer.Process, start func() error) error {
	done := make(chan error, 1)
	go func() { done <- start() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), giveUp)
	defer stop()
	for {
		killErr := group.Kill(late)
		select {
		case err := <-done:
			if err == nil {
				// It was faster than the deadline, but what it made is dead, or will be.
				err = reap(process)
			}
			return fmt.Errorf("%w (%w)", cause(ctx), err)
		case <-late.Done():
			return fmt.Errorf("%w, and its processes do not die: %w", cause(ctx), errors.Join(killErr, errs.Deadline))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// reap kills and reaps a process whose start was too late for anybody to hear of it.
// A zombie in a container's PID namespace keeps the container's init from ending.
func reap(process *libcontainer.Process) error {
	if err := process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot kill the process: %w", err)
	}
	if _, err := process.Wait(); err != nil {
		var ended *exec.ExitError // what a killed one is to it
		if !errors.As(err, &ended) {
			return fmt.Errorf("cannot reap the process: %w", err)
		}
	}
	return errors.New("the process was killed")
}

// cause is why ctx ended, with a kind.
func cause(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the runtime took too long: %w", errs.Deadline)
	}
	return ctx.Err()
}

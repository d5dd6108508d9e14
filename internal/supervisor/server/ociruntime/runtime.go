// Package ociruntime turns an OCI spec into a running process, and is the only package that knows
// libcontainer. starter.go has the interface of what starts processes, waiting.go the protocol of an
// init that waits for the start.
//
// A Runtime keeps no state of containers in memory between calls, but for what execs have read of it
// (execstate): the state is in the state directory, in the format of runc. So each call works on its
// own object, a call that hangs delays no other, and containers of a former supervisor need no
// special case.
//
// libcontainer has faults that matter in a long-lived process. This package works around them. Each
// has a test that names it.
package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	_ "github.com/opencontainers/cgroups/devices" // without it no device rule is applied
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/filter"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/execstate"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// initLogLevel keeps a failing init from writing debug messages to the container's log; "2" is the
// error level of logrus.
const initLogLevel = "2"

// Name is the name of the runtime, for people.
const Name = "libcontainer"

// Runtime makes and finds containers below one state directory.
type Runtime struct {
	root    string
	host    *Host
	starter starter
	states  *execstate.Cache
	filters *filter.Cache
}

// New returns a Runtime on root, which it creates when needed. With own, berth's own init starts the
// containers that it can, and libcontainer the others. isInit reports whether a process is the
// init of a container: its zombie is not reaped when a start fails, since its exit may not be recorded
// yet.
func New(root string, host *Host, own bool, isInit func(pid int) bool) (*Runtime, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the runtime's state directory: %w", err)
	}
	logrus.SetLevel(logrus.ErrorLevel)
	lib := &libcontainerStarter{root: root, zombies: &zombieReaper{isInit: isInit}}
	r := &Runtime{root: root, host: host, starter: lib, states: execstate.New(root), filters: &filter.Cache{}}
	if own {
		program := sync.OnceValues(func() (*fork.Program, error) { return openProgram(root) })
		refusal, filters := ownRefusal(host), r.filters
		r.starter = &execStarter{
			starter: &ownStarter{libcontainerStarter: lib, refusal: refusal, filters: filters, program: program},
			own:     newOwnExecutor(refusal, filters, lib.zombies.reapSoon, program),
		}
	}
	return r, nil
}

// Warm opens what all starts share, so that the first one does not. An error is the reason of the first
// start.
func (r *Runtime) Warm() {
	if own, ok := r.starter.(*execStarter); ok && own.own.refusal == "" {
		own.own.warm()
	}
}

// Init is the main function of an init that libcontainer starts. It runs while Go is on the process's
// first thread, and does not return.
func Init() {
	if os.Getenv("_LIBCONTAINER_INITTYPE") == "setns" {
		silenceStderr()
	}
	libcontainer.Init()
}

// silenceStderr keeps the errors that libcontainer prints out of the output of an exec, when the
// supervisor dies before the process has begun: the exec is run again. Go's os.Stderr becomes a
// descriptor of the same file that cannot be written to, and is closed at the execve. Descriptor 2
// stays. It has no effect where the user of a user namespace may not open the file.
func silenceStderr() {
	unwritable, err := os.OpenFile("/proc/self/fd/2", os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err == nil {
		os.Stderr = unwritable
	}
}

// StdIO has the descriptors 0 to 2 of a process; nil means /dev/null. With Console (a unix socket, to
// which the process sends the master of its pty) the others are nil.
type StdIO struct {
	Stdin, Stdout, Stderr *os.File
	Console               *os.File
}

// Create makes the container up to the point where its init waits to execute the
// user's program, and returns the init's pid, a child of this process. When ctx ends
// first, Create kills everything that it started. On error the caller calls Remove. The
// error is a *ProgramError when the program is at fault, and has an errs.Fault where it is
// about a part of the container. No two calls for one id may run at a time.
func (r *Runtime) Create(ctx context.Context, p *Plan, io *StdIO) (pid int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return r.starter.create(ctx, p, io)
}

// Remove removes the runtime's own state of a container, and its cgroup through the
// manager that made it (systemd drops the scope then). The processes must be dead. It
// also removes a partly created container. Nil when there is none.
// An error says only why: the caller adds that the container cannot be removed.
func (r *Runtime) Remove(id string) error {
	c, err := r.load(id)
	switch {
	case err == nil:
		// Without a call of Status before it, Destroy kills a running container without
		// an error.
		status, err := c.Status()
		if err != nil {
			return fmt.Errorf("cannot read its status: %w", err)
		}
		if status != libcontainer.Stopped {
			return fmt.Errorf("it is %s: %w", status, errs.State)
		}
		if err := c.Destroy(); err != nil {
			return fmt.Errorf("cannot destroy it: %w", err)
		}
	case errors.Is(err, errs.Invalid):
		return err // the id is not a file name: no state can exist
	case !errors.Is(err, errs.NotFound):
		// The state file cannot be read: only the directory is ours, the cgroup is
		// the caller's.
	}
	r.states.Forget(id)
	if err := os.RemoveAll(r.dir(id)); err != nil {
		return fmt.Errorf("cannot remove its state: %w", err)
	}
	return nil
}

// Found is the state of a container in the state directory.
type Found struct {
	Pid int
	// StartTime of Pid, in clock ticks since boot.
	StartTime uint64
	Cgroups   cgroup.Paths
	Created   time.Time
	// Waiting is true while the init waits to execute the user's program.
	Waiting bool
}

// Find returns the state of a container, whether its process still runs or not. Kind NotFound when
// there is none, or the container is partly created.
func (r *Runtime) Find(id string) (*Found, error) {
	c, err := r.load(id)
	if err != nil {
		return nil, err
	}
	return r.found(c)
}

func (r *Runtime) found(c *libcontainer.Container) (*Found, error) {
	state, err := c.State()
	if err != nil {
		return nil, fmt.Errorf("cannot read the state of container %s: %w", c.ID(), err)
	}
	return &Found{
		Pid:       state.InitProcessPid,
		StartTime: state.InitProcessStartTime,
		Cgroups:   state.CgroupPaths,
		Created:   state.Created,
		Waiting:   r.waiting(c.ID()),
	}, nil
}

// IDs returns every id that has state in the state directory.
func (r *Runtime) IDs() ([]string, error) {
	entries, err := os.ReadDir(r.root)
	if err != nil {
		return nil, fmt.Errorf("cannot list the runtime's state directory: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

func (r *Runtime) load(id string) (*libcontainer.Container, error) { return load(r.root, id) }

func load(root, id string) (*libcontainer.Container, error) {
	c, err := libcontainer.Load(root, id)
	switch {
	case errors.Is(err, libcontainer.ErrNotExist), errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("container %s: %w", id, errs.NotFound)
	case errors.Is(err, libcontainer.ErrInvalidID):
		return nil, fmt.Errorf("container id %q: %w", id, errs.Invalid)
	case err != nil:
		return nil, fmt.Errorf("cannot load container %s: %w", id, err)
	}
	return c, nil
}

func (r *Runtime) dir(id string) string { return filepath.Join(r.root, id) }

// Filter returns what the kernel loads of a seccomp profile, nil for none.
func (r *Runtime) Filter(ctx context.Context, profile *specs.LinuxSeccomp) (*finish.Filter, error) {
	if profile == nil {
		return nil, nil //nolint:nilnil // no filter is no failure
	}
	config, err := specconv.SetupSeccomp(profile)
	if err != nil {
		return nil, Classify(err, "")
	}
	return r.filters.Get(ctx, config)
}

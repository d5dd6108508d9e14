// Package ociruntime is the one place that turns an OCI spec into a running
// process, and the only package that knows libcontainer.
//
// A Runtime keeps nothing of containers in memory between calls: what it knows of one
// is in the state directory, in runc's own format. So each call works on an
// object of its own, and one that hangs holds up no other; a container that was
// made by a supervisor that is gone is no different from one that was not.
//
// The hazards of libcontainer in a long-lived process are closed here; the test
// of each names it.
package ociruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	_ "github.com/opencontainers/cgroups/devices" // without it no device rule is applied
	"github.com/opencontainers/runc/libcontainer"
	"github.com/sirupsen/logrus"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// initLogLevel keeps a dying init from writing its last words to the container's
// log; "2" is logrus' error level.
const initLogLevel = "2"

// Name is what people know the runtime by.
const Name = "libcontainer"

// Runtime makes and finds containers below one state directory.
type Runtime struct {
	root      string
	host      *Host
	forgotten forgotten
}

// New returns a Runtime on root, which it creates when needed. spare tells of children
// of this process whose zombies are not to be reaped when a start fails: inits of
// containers, before their ends are recorded.
func New(root string, host *Host, spare func(pid int) bool) (*Runtime, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the runtime's state directory: %w", err)
	}
	logrus.SetLevel(logrus.ErrorLevel)
	return &Runtime{root: root, host: host, forgotten: forgotten{spare: spare}}, nil
}

// Init is what an init that libcontainer starts runs before main, while Go is on the
// process's first thread. It does not return.
func Init() {
	if os.Getenv("_LIBCONTAINER_INITTYPE") == "setns" {
		hush()
	}
	libcontainer.Init()
}

// hush keeps what libcontainer complains of, when the supervisor dies before an
// exec's process has begun, out of what the caller takes for the process's output:
// the exec is run again. Go's os.Stderr becomes an end of the same file that cannot
// be written to, and goes at the execve; descriptor 2 stays.
func hush() {
	deaf, err := os.OpenFile("/proc/self/fd/2", os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err == nil { // else the user of a namespace of its own may not: it complains
		os.Stderr = deaf
	}
}

// StdIO is what a process gets as its descriptors 0 to 2; nil means /dev/null.
// With Console (a unix socket, to which the process sends the master of its pty)
// the others are nil.
type StdIO struct {
	Stdin, Stdout, Stderr *os.File
	Console               *os.File
}

// Found is a container as the state directory tells of it.
type Found struct {
	Pid int
	// StartTime of Pid, in clock ticks since boot.
	StartTime uint64
	Cgroups   cgroup.Paths
	Created   time.Time
	// Waiting is true while the init waits to execute the user's program.
	Waiting bool
}

// Find returns what the state directory tells, whether the process still runs or
// not. errs.NotFound when the container was never made, or half.
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
	_, fifoErr := os.Lstat(r.fifo(c.ID()))
	return &Found{
		Pid:       state.InitProcessPid,
		StartTime: state.InitProcessStartTime,
		Cgroups:   state.CgroupPaths,
		Created:   state.Created,
		Waiting:   fifoErr == nil,
	}, nil
}

// IDs returns every id of which the state directory holds anything.
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

func (r *Runtime) load(id string) (*libcontainer.Container, error) {
	c, err := libcontainer.Load(r.root, id)
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

func (r *Runtime) dir(id string) string  { return filepath.Join(r.root, id) }
func (r *Runtime) fifo(id string) string { return filepath.Join(r.root, id, "exec.fifo") }

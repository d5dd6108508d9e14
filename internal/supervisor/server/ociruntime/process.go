package ociruntime

import (
	"fmt"
	"os"
	"sync"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/ownstart/trees"
)

// newProcess copies every field that runc's command line copies. For a missing field the process
// would inherit the supervisor's own value (a limit, a capability).
func newProcess(p *specs.Process) (*libcontainer.Process, error) {
	lp := &libcontainer.Process{
		Args:            p.Args,
		Env:             p.Env,
		UID:             int(p.User.UID),
		GID:             int(p.User.GID),
		Cwd:             p.Cwd,
		Label:           p.SelinuxLabel,
		NoNewPrivileges: &p.NoNewPrivileges,
		AppArmorProfile: p.ApparmorProfile,
		Scheduler:       p.Scheduler,
		IOPriority:      p.IOPriority,
		LogLevel:        initLogLevel,
	}
	if p.ConsoleSize != nil {
		lp.ConsoleWidth = uint16(p.ConsoleSize.Width)
		lp.ConsoleHeight = uint16(p.ConsoleSize.Height)
	}
	if c := p.Capabilities; c != nil {
		lp.Capabilities = &configs.Capabilities{
			Bounding:    c.Bounding,
			Effective:   c.Effective,
			Inheritable: c.Inheritable,
			Permitted:   c.Permitted,
			Ambient:     c.Ambient,
		}
	}
	for _, gid := range p.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(gid))
	}
	for _, limit := range p.Rlimits {
		kind, ok := finish.LimitKind(limit.Type)
		if !ok {
			return nil, fmt.Errorf("rlimit type %q is not known: %w", limit.Type, errs.Invalid)
		}
		lp.Rlimits = append(lp.Rlimits, configs.Rlimit{Type: kind, Hard: limit.Hard, Soft: limit.Soft})
	}
	affinity, err := configs.ConvertCPUAffinity(p.ExecCPUAffinity)
	if err != nil {
		return nil, fmt.Errorf("execCPUAffinity: %w: %w", err, errs.Invalid)
	}
	lp.CPUAffinity = affinity
	return lp, nil
}

// null is what a process has in the place of streams that it does not get: the host's /dev/null for reading and for writing.
type null struct{ input, output *os.File }

// openNull opens /dev/null on a read-only mount of its own. A device on it can be written as anywhere, but its mode and its
// owner cannot be changed: the node is the host's, and a process of a container may have the uid of its owner.
var openNull = sync.OnceValues(func() (*null, error) { //nolint:gochecknoglobals // of the process, as its mounts are
	tree, err := trees.Clone(unix.AT_FDCWD, os.DevNull, false)
	if err != nil {
		return nil, fmt.Errorf("cannot clone the mount of %s: %w", os.DevNull, err)
	}
	defer unix.Close(tree)
	if err := trees.Change(tree, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}, false); err != nil {
		return nil, fmt.Errorf("cannot make a mount of %s read-only: %w", os.DevNull, err)
	}
	n, path := &null{}, fmt.Sprintf("/proc/self/fd/%d", tree)
	if n.input, err = os.OpenFile(path, os.O_RDONLY, 0); err == nil {
		n.output, err = os.OpenFile(path, os.O_WRONLY, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", os.DevNull, err)
	}
	return n, nil
})

// apply gives the streams to a process of libcontainer.
func (io *StdIO) apply(p *libcontainer.Process) {
	if io.Console != nil {
		p.ConsoleSocket = io.Console
		return
	}
	// A nil *os.File in an interface is not nil.
	if io.Stdin != nil {
		p.Stdin = io.Stdin
	}
	if io.Stdout != nil {
		p.Stdout = io.Stdout
	}
	if io.Stderr != nil {
		p.Stderr = io.Stderr
	}
}

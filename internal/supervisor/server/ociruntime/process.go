package ociruntime

import (
	"fmt"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
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

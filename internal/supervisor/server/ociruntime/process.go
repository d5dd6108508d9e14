package ociruntime

import (
	"fmt"
	"syscall"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
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
		kind, ok := rlimitKind(limit.Type)
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

// rlimitKind returns the kernel's number of a limit that the OCI spec names.
// Those that package syscall lacks are the same on all architectures but MIPS
// and SPARC.
func rlimitKind(name string) (int, bool) {
	const rss, nproc, memlock, locks, sigpending, msgqueue, nice, rtprio, rttime = 5, 6, 8, 10, 11, 12, 13, 14, 15
	switch name {
	case "RLIMIT_CPU":
		return syscall.RLIMIT_CPU, true
	case "RLIMIT_FSIZE":
		return syscall.RLIMIT_FSIZE, true
	case "RLIMIT_DATA":
		return syscall.RLIMIT_DATA, true
	case "RLIMIT_STACK":
		return syscall.RLIMIT_STACK, true
	case "RLIMIT_CORE":
		return syscall.RLIMIT_CORE, true
	case "RLIMIT_NOFILE":
		return syscall.RLIMIT_NOFILE, true
	case "RLIMIT_AS":
		return syscall.RLIMIT_AS, true
	case "RLIMIT_RSS":
		return rss, true
	case "RLIMIT_NPROC":
		return nproc, true
	case "RLIMIT_MEMLOCK":
		return memlock, true
	case "RLIMIT_LOCKS":
		return locks, true
	case "RLIMIT_SIGPENDING":
		return sigpending, true
	case "RLIMIT_MSGQUEUE":
		return msgqueue, true
	case "RLIMIT_NICE":
		return nice, true
	case "RLIMIT_RTPRIO":
		return rtprio, true
	case "RLIMIT_RTTIME":
		return rttime, true
	}
	return 0, false
}

package finish

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// DefaultUmask is the umask of a process whose spec has none.
const DefaultUmask = 0o022

// FromSpec returns what a process of a spec becomes, with filter, nil for none. Unknown capabilities
// are left out. Fields that the child does not handle (the scheduler, the I/O priority, a CPU
// affinity) are an error of kind Unsupported; a value that the kernel would refuse is Invalid.
// OOMScoreAdj and the keyring are the caller's: an exec has those of its container.
func FromSpec(p *specs.Process, filter *Filter) (*Process, error) {
	if p.Scheduler != nil || p.IOPriority != nil || p.ExecCPUAffinity != nil {
		return nil, fmt.Errorf("scheduler, ioPriority or execCPUAffinity: %w", errs.Unsupported)
	}
	if len(p.Args) == 0 || p.Args[0] == "" {
		return nil, fmt.Errorf("process.args is empty: %w", errs.Invalid)
	}
	out := &Process{
		Args:            p.Args,
		Cwd:             p.Cwd,
		UID:             int(p.User.UID),
		GID:             int(p.User.GID),
		Umask:           DefaultUmask,
		NoNewPrivileges: p.NoNewPrivileges,
		Filter:          filter,
		AppArmor:        p.ApparmorProfile,
		SELinux:         p.SelinuxLabel,
	}
	if p.User.Umask != nil {
		out.Umask = int(*p.User.Umask)
	}
	for _, gid := range p.User.AdditionalGids {
		out.Groups = append(out.Groups, int(gid))
	}
	for _, s := range slices.Concat(p.Args, []string{p.Cwd}) {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("argument or working directory %q has a NUL byte: %w", s, errs.Invalid)
		}
	}
	var err error
	if out.Env, out.NeedsHome, err = environment(p.Env); err != nil {
		return nil, err
	}
	for _, limit := range p.Rlimits {
		kind, ok := LimitKind(limit.Type)
		if !ok {
			return nil, fmt.Errorf("rlimit type %q is not known: %w", limit.Type, errs.Invalid)
		}
		out.Rlimits = append(out.Rlimits, Rlimit{Kind: kind, Soft: limit.Soft, Hard: limit.Hard})
	}
	if c := p.Capabilities; c != nil {
		out.Capabilities = CapabilitySets(c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient)
	}
	return out, nil
}

// environment returns env with the last value of each name, in the order of these, and without an
// empty HOME. needsHome is true when there is no other HOME.
func environment(env []string) (out []string, needsHome bool, err error) {
	needsHome = true
	seen := make(map[string]bool, len(env))
	for _, entry := range slices.Backward(env) {
		name, value, found := strings.Cut(entry, "=")
		switch {
		case !found || name == "":
			return nil, false, fmt.Errorf("environment variable %q is not NAME=VALUE: %w", entry, errs.Invalid)
		case seen[name]:
			continue
		case strings.IndexByte(entry, 0) >= 0:
			return nil, false, fmt.Errorf("environment variable %q has a NUL byte: %w", name, errs.Invalid)
		}
		seen[name] = true
		if name == "HOME" {
			if value == "" {
				continue
			}
			needsHome = false
		}
		out = append(out, entry)
	}
	slices.Reverse(out)
	return out, needsHome, nil
}

// CapabilitySets returns the sets of capabilities that names name ("CAP_CHOWN"). It leaves out unknown
// ones.
func CapabilitySets(bounding, effective, permitted, inheritable, ambient []string) *Capabilities {
	return &Capabilities{
		Bounding:    mask(bounding),
		Effective:   mask(effective),
		Permitted:   mask(permitted),
		Inheritable: mask(inheritable),
		Ambient:     mask(ambient),
	}
}

// mask returns the set of the capabilities that names names ("CAP_CHOWN"). It leaves out unknown ones.
func mask(names []string) uint64 {
	var set uint64
	for _, name := range names {
		upper, found := strings.CutPrefix(name, "CAP_")
		if !found || upper != strings.ToUpper(upper) {
			continue
		}
		for _, c := range capability.ListKnown() {
			if strings.EqualFold(upper, c.String()) {
				set |= 1 << uint(c)
			}
		}
	}
	return set
}

// LimitKind returns the kernel's number of a limit that the OCI spec names. Those that package
// syscall lacks are the same on all architectures but MIPS and SPARC.
func LimitKind(name string) (int, bool) {
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

package finish

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
)

// Procfs is a descriptor of the root directory of a real procfs that shows the calling thread. A path
// would lead to whatever the container has at /proc.
type Procfs int

// write writes value to a file, such as "thread-self/attr/exec".
func (proc Procfs) write(name, value string) error {
	fd, err := proc.open(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("write /proc/%s: %w", name, err)
	}
	return nil
}

// read returns the first 4 KiB of a file.
func (proc Procfs) read(name string) (string, error) {
	fd, err := proc.open(name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", fmt.Errorf("read /proc/%s: %w", name, err)
	}
	return string(buf[:n]), nil
}

func (proc Procfs) open(name string, flags int) (int, error) {
	fd, err := unix.Openat(int(proc), name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /proc/%s: %w", name, err)
	}
	return fd, nil
}

// Prepare does what needs rights that Become drops, and what the program's filter may not allow: the
// session keyring, labels, the OOM score, the umask, the CPU affinity and the limits. The child is in
// the container's cgroups: their cpusets bound its affinity.
func (p *Process) Prepare(proc Procfs) error {
	if p.OOMScoreAdj != nil {
		if err := proc.write("self/oom_score_adj", strconv.Itoa(*p.OOMScoreAdj)); err != nil {
			return failure.New(failure.OfHost, "", "cannot set oom_score_adj: %w", err)
		}
	}
	if err := p.joinKeyring(proc); err != nil {
		return failure.New(failure.OfHost, "", "cannot join the session keyring: %w", err)
	}
	if err := p.label(proc); err != nil {
		return err
	}
	unix.Umask(p.Umask)
	resetAffinity()
	for _, l := range p.Rlimits {
		if err := setLimit(l); err != nil {
			part := failure.OfHost
			if errors.Is(err, unix.EINVAL) {
				part = failure.OfSpec
			}
			return failure.New(part, "process.rlimits", "cannot set rlimit %d to %d, at most %d: %w", l.Kind, l.Soft, l.Hard, err)
		}
	}
	return nil
}

// joinKeyring keeps the keys of berth's session from the container. A kernel without keyrings has
// nothing to keep.
func (p *Process) joinKeyring(proc Procfs) error {
	if p.Keyring == "" {
		return nil
	}
	if p.SELinux != "" {
		// An old kernel cannot label keyrings.
		if err := proc.write("thread-self/attr/keycreate", p.SELinux); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	id, err := unix.KeyctlJoinSessionKeyring(p.Keyring)
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil || p.KeyringAccess == 0 {
		return err
	}
	described, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, id)
	if err != nil {
		return err
	}
	fields := strings.Split(described, ";") // type, uid, gid, permissions, name
	if len(fields) < 5 {
		return fmt.Errorf("its description is %q", described)
	}
	access, err := strconv.ParseUint(fields[3], 16, 32)
	if err != nil {
		return fmt.Errorf("its permissions are %q", fields[3])
	}
	return unix.KeyctlSetperm(id, uint32(access)|p.KeyringAccess)
}

// label sets what the program runs as after the execve.
func (p *Process) label(proc Procfs) error {
	if p.SELinux != "" {
		if err := proc.write("thread-self/attr/exec", p.SELinux); err != nil {
			return failure.New(failure.OfHost, "", "cannot set the SELinux label %q: %w", p.SELinux, err)
		}
	}
	if p.AppArmor == "" {
		return nil
	}
	// A kernel with several security modules has a directory for each.
	err := proc.write("thread-self/attr/apparmor/exec", "exec "+p.AppArmor)
	if errors.Is(err, unix.ENOENT) {
		err = proc.write("thread-self/attr/exec", "exec "+p.AppArmor)
	}
	if err != nil {
		return failure.New(failure.OfHost, "", "cannot set the AppArmor profile %q: %w", p.AppArmor, err)
	}
	return nil
}

// resetAffinity lets the process run on every CPU that its cgroup allows: it must not inherit the
// affinity of a thread of the supervisor. The kernel clips the set.
func resetAffinity() {
	const maxCPUs = 64 * 1024
	all := make([]byte, maxCPUs/8)
	for i := range all {
		all[i] = 0xff
	}
	// Without it the process runs on fewer CPUs, so a failure is no reason to refuse the process.
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_SETAFFINITY, 0, uintptr(len(all)), uintptr(unsafe.Pointer(&all[0])))
}

// setLimit sets one limit. Only through package syscall, Go forgets the limit of open files that it
// would restore at the execve.
func setLimit(l Rlimit) error {
	if l.Kind == syscall.RLIMIT_NOFILE {
		return syscall.Setrlimit(l.Kind, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard})
	}
	return unix.Prlimit(0, l.Kind, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil)
}

package finish

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
)

// Become gives the calling thread the rights of the program, enters its directory, and finds it. It
// closes all descriptors but 0 to 2, proc and keep. After it the thread makes only system calls that the
// program's filter allows. Exec is next; an init waits in between.
func (p *Process) Become(proc Procfs, keep ...int) error {
	if p.NeedsHome {
		p.Env = append(p.Env, "HOME="+homeOf(p.UID))
	}
	setgroups := maySetGroups(proc)
	if err := p.keepOnly(proc, keep); err != nil {
		return failure.New(failure.OfHost, "", "cannot close descriptors: %w", err)
	}
	if p.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return failure.New(failure.OfHost, "", "cannot set no_new_privs: %w", err)
		}
	} else if err := p.load(); err != nil {
		return err
	}
	if err := p.changeUser(setgroups); err != nil {
		return err
	}
	path := ""
	for _, entry := range p.Env {
		if value, found := strings.CutPrefix(entry, "PATH="); found {
			path = value
		}
	}
	var err error
	if p.program, err = lookUp(p.Args[0], path); err != nil {
		return err
	}
	if p.NoNewPrivileges {
		return p.load()
	}
	return nil
}

// changeUser enters the directory and takes user, groups and capabilities.
func (p *Process) changeUser(setgroups bool) error {
	// As root first: the user may not be allowed to enter its directory. Where root is not (on a
	// network file system), the user may be.
	entered := p.Cwd == ""
	if !entered {
		err := unix.Chdir(p.Cwd)
		entered = err == nil
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return p.directoryFailure(err)
		}
	}
	if err := p.dropBounding(); err != nil {
		return failure.New(failure.OfHost, "", "cannot drop capabilities from the bounding set: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return failure.New(failure.OfHost, "", "cannot keep capabilities: %w", err)
	}
	if err := p.giveStreams(); err != nil {
		return failure.New(failure.OfHost, "", "cannot give the standard streams to user %d: %w", p.UID, err)
	}
	if err := p.setIDs(setgroups); err != nil {
		return err
	}
	if !entered {
		if err := unix.Chdir(p.Cwd); err != nil {
			return p.directoryFailure(err)
		}
	}
	if err := checkInside(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 0, 0, 0, 0); err != nil {
		return failure.New(failure.OfHost, "", "cannot keep capabilities: %w", err)
	}
	if err := p.setCapabilities(); err != nil {
		return failure.New(failure.OfHost, "", "cannot set capabilities: %w", err)
	}
	// A change of user may make the process dumpable, as a sysctl says.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return failure.New(failure.OfHost, "", "cannot protect the process: %w", err)
	}
	return nil
}

func (p *Process) directoryFailure(err error) error {
	return failure.New(failure.OfDirectory, p.Cwd, "chdir to cwd (%q) set in config.json failed: %w", p.Cwd, err)
}

// checkInside refuses a working directory outside of the root, to which a link to a descriptor of
// the host may have led.
func checkInside() error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Getcwd(buf)
	switch {
	case err == nil && n > 0 && buf[0] == '/':
		return nil
	case err == nil, errors.Is(err, unix.ENOENT):
		return failure.New(failure.OfDirectory, "", "current working directory is outside of the container's root")
	}
	return failure.New(failure.OfDirectory, "", "cannot check the current working directory: %w", err)
}

// homeOf returns the home directory of a user in the container's /etc/passwd, "/" by default.
func homeOf(uid int) string {
	found, err := user.LookupUid(uid)
	if err != nil {
		return "/"
	}
	return found.Home
}

// giveStreams makes the user the owner of the standard streams, since it may open them again
// (/dev/stdout). /dev/null stays as it is.
func (p *Process) giveStreams() error {
	for fd := range 3 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("fstat %d: %w", fd, err)
		}
		null := st.Mode&unix.S_IFMT == unix.S_IFCHR && uint64(st.Rdev) == unix.Mkdev(1, 3) //nolint:unconvert // it is shorter on MIPS
		if int(st.Uid) == p.UID || null {
			continue
		}
		// An owner that the user namespace does not have, or a read-only file system: the
		// process can write to the stream anyway.
		if err := unix.Fchown(fd, p.UID, -1); err != nil && err != unix.EPERM && err != unix.EROFS {
			return fmt.Errorf("chown %d: %w", fd, err)
		}
	}
	return nil
}

// maySetGroups is false in a user namespace that was made without the right to.
func maySetGroups(proc Procfs) bool {
	value, err := proc.read("self/setgroups")
	return err != nil || strings.TrimSpace(value) != "deny"
}

// setIDs changes the ids of this thread alone: the execve ends the others.
func (p *Process) setIDs(setgroups bool) error {
	if setgroups {
		groups := make([]uint32, len(p.Groups)+1) // one more, for its address
		for i, gid := range p.Groups {
			groups[i] = uint32(gid)
		}
		if _, _, errno := unix.RawSyscall(sysSetgroups, uintptr(len(p.Groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
			return failure.New(failure.OfUser, "", "setgroups: %w", errno)
		}
	}
	if _, _, errno := unix.RawSyscall(sysSetgid, uintptr(p.GID), 0, 0); errno != 0 {
		return failure.New(failure.OfUser, "", "cannot set the group to %d: %w", p.GID, errno)
	}
	if _, _, errno := unix.RawSyscall(sysSetuid, uintptr(p.UID), 0, 0); errno != 0 {
		return failure.New(failure.OfUser, "", "cannot set the user to %d: %w", p.UID, errno)
	}
	return nil
}

// lastCapability is above what any kernel has: it ignores the bits of others.
const lastCapability = 63

func (p *Process) dropBounding() error {
	if p.Capabilities == nil {
		return nil
	}
	for c := range uintptr(lastCapability + 1) {
		if p.Capabilities.Bounding&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err == unix.EINVAL {
			return nil // there is none above
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (p *Process) setCapabilities() error {
	c := p.Capabilities
	if c == nil {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		data[i] = unix.CapUserData{
			Effective:   uint32(c.Effective >> (32 * i)),
			Permitted:   uint32(c.Permitted >> (32 * i)),
			Inheritable: uint32(c.Inheritable >> (32 * i)),
		}
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil && err != unix.EINVAL {
		return err
	}
	for bit := range uintptr(lastCapability + 1) {
		if c.Ambient&(1<<bit) != 0 {
			// The kernel refuses one that is not permitted and inheritable: it has no effect.
			_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, bit, 0, 0)
		}
	}
	return nil
}

// load loads the filter for this thread.
func (p *Process) load() error {
	f := p.Filter
	if f == nil {
		return nil
	}
	const instruction = int(unsafe.Sizeof(unix.SockFilter{}))
	if len(f.Program) == 0 || len(f.Program)%instruction != 0 {
		return failure.New(failure.OfHost, "", "the seccomp filter has %d bytes", len(f.Program))
	}
	// The bytes may begin anywhere in a message: the kernel copies them.
	program := unix.SockFprog{Len: uint16(len(f.Program) / instruction), Filter: (*unix.SockFilter)(unsafe.Pointer(&f.Program[0]))}
	const setModeFilter = 1
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setModeFilter, uintptr(f.Flags), uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return failure.New(failure.OfSeccomp, "", "cannot load the seccomp filter: %w", errno)
	}
	return nil
}

// lookUp returns the path of an executable file, as the calling thread may execute it. A name without
// a slash is looked for in the directories of path.
func lookUp(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		if err := executable(name); err != nil {
			return "", failure.New(failure.OfProgram, name, "exec: %q: %w", name, err)
		}
		return name, nil
	}
	if name == "." || name == ".." {
		path = ""
	}
	for dir := range strings.SplitSeq(path, ":") {
		if path == "" {
			break
		}
		if dir == "" {
			dir = "." // as in a shell
		}
		candidate := strings.TrimRight(dir, "/") + "/" + name
		if executable(candidate) != nil {
			continue
		}
		if dir[0] != '/' {
			return "", failure.New(failure.OfProgram, name, "exec: %q: cannot run executable found relative to current directory", name)
		}
		return candidate, nil
	}
	f := failure.New(failure.OfProgram, name, "exec: %q: executable file not found in $PATH", name)
	f.Errno = unix.ENOENT
	return "", f
}

// executable returns nil for a file that the calling thread may execute.
func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return unix.EISDIR
	}
	err = unix.Faccessat2(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return err
	}
	// An older kernel, or a filter: the permission bits have to do.
	if info.Mode()&0o111 == 0 {
		return fs.ErrPermission
	}
	return nil
}

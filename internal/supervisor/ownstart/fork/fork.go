// Package fork starts the program of children, as a child in the namespaces and the cgroup that the caller
// names.
//
// The first process begins outside, and package enter forks it into them before Go's runtime starts: until an
// execve, a child shares the memory and the descriptors of the process that starts it. The supervisor's
// must neither be seen by a container that may trace, nor depend on what befalls a container's cgroup.
//
// The child begins in an empty mount namespace: no mount of the host is in it, however long it waits.
// All of its threads are in these namespaces.
package fork

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Program starts children. Its methods may be called by several goroutines.
type Program struct {
	exe *os.File
	// place is an existing directory; no other process sees what is mounted on it.
	place string

	once sync.Once
	// empty is the empty mount namespace, fds this process's /proc/self/fd, as a path.
	empty, fds *os.File
	// kept is the number above the descriptors that each thread needs; see keptDescriptors.
	kept int
	err  error
}

// New returns a Program that starts exe. A process that can open a child's /proc/PID/exe must not be able to write
// to it: it is a sealed memfd, or a file of a read-only overlay. place is a directory.
func New(exe *os.File, place string) *Program { return &Program{exe: exe, place: place} }

// Namespace is one to join. Kind is its CLONE_NEW flag.
type Namespace struct {
	File *os.File
	Kind int
}

// Request says how a child begins.
type Request struct {
	// Role is its only argument.
	Role string
	// Join are namespaces that exist, New the flags (CLONE_NEWIPC, ...) of those to make. With
	// CLONE_NEWNS the child has a copy of the empty mount namespace, in which it can mount. Without it
	// children share that namespace: a child that leaves it does not wait for the kernel to free it.
	Join []Namespace
	New  uintptr
	// User is a user namespace to enter, or a process in it; nil to stay in that of the supervisor. The
	// child is root there, and the namespaces of New belong to it.
	User *os.File
	// Stage has mounts of the host that the child finds in its mount namespace, or nil: from a user
	// namespace it cannot enter that of the host. It needs User, and CLONE_NEWNS in New.
	Stage *Stage
	// Cgroup is a directory of cgroup v2 to be born in, or nil.
	Cgroup *os.File
	// Stdio are the descriptors 0 to 2.
	Stdio [3]*os.File
}

// Child is a child of this process.
type Child struct {
	Pid   int
	Pidfd *os.File
	// Conn is a stream socket whose other end is the child's descriptor Socket of package order.
	Conn *net.UnixConn
}

// Prepare makes what all children need. Start does it, too; an error that it has is final.
func (p *Program) Prepare() error {
	p.once.Do(func() { p.err = p.prepare() })
	return p.err
}

// Start starts a child. The caller reaps it, and closes Pidfd and Conn. The error is ctx.Err() when ctx ends before
// the child has entered its namespaces.
func (p *Program) Start(ctx context.Context, r *Request) (*Child, error) {
	if err := p.Prepare(); err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make a socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "socketpair")
	conn, err := sysfd.FileUnixConn(os.NewFile(uintptr(fds[0]), "socketpair"))
	if err != nil {
		theirs.Close()
		return nil, err
	}
	child := &Child{Conn: conn}
	done := make(chan error, 1)
	// The thread ends: it shares no root and working directory with the others any more.
	sysns.GoOnThread(func() { done <- p.start(r, theirs, child) })
	err = <-done
	theirs.Close() // so that Conn reads EOF when the process dies without a report
	runtime.KeepAlive(r)
	if err == nil {
		err = child.open()
	}
	if err == nil {
		err = child.awaitEntered(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return child, nil
}

// open opens the pidfd of a child that was started a moment ago. On error the child is gone.
func (c *Child) open() (err error) {
	// It is not reaped: the pid is its own.
	if c.Pidfd, err = sysproc.OpenPidfd(c.Pid); err == nil {
		return nil
	}
	// It has not got its order, and does nothing.
	if killErr := syscall.Kill(c.Pid, syscall.SIGKILL); killErr != nil {
		return errors.Join(err, killErr)
	}
	for {
		if _, waitErr := syscall.Wait4(c.Pid, nil, 0, nil); waitErr != syscall.EINTR {
			return err
		}
	}
}

// start is called on a thread of its own.
func (p *Program) start(r *Request, socket *os.File, child *Child) error {
	before, inPID := splitPID(r.Join)
	files := []*os.File{r.Stdio[0], r.Stdio[1], r.Stdio[2], socket, r.Cgroup, r.User, inPID, p.empty, p.fds}
	for _, ns := range before {
		files = append(files, ns.File)
	}
	enter := entrance{pid: inPID, user: r.User, cgroup: r.Cgroup, make: r.New}
	program := strconv.Itoa(int(p.exe.Fd()))
	t, err := p.ownTable(files)
	if err != nil {
		return fmt.Errorf("cannot prepare a thread: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cannot prepare a thread: %w", err)
	}
	for _, ns := range before {
		if err := unix.Setns(t.of(ns.File), ns.Kind); err != nil {
			return fmt.Errorf("cannot join namespace %s: %w", ns.File.Name(), &JoinError{err})
		}
	}
	if err := unix.Setns(t.of(p.empty), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot enter the empty mount namespace: %w", err)
	}
	if r.Stage != nil {
		if err := r.Stage.layOut(t); err != nil {
			return fmt.Errorf("cannot prepare the mounts of a child: %w", err)
		}
	}
	// There is no other path to the program in that namespace.
	if err := unix.Fchdir(t.of(p.fds)); err != nil {
		return fmt.Errorf("cannot enter the list of descriptors: %w", err)
	}
	attr := &syscall.ProcAttr{
		// One P is enough for a child that works on one thread and has little to collect.
		Env: []string{"GOMAXPROCS=1", "GOGC=off", "GOTRACEBACK=none"},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	for _, f := range []*os.File{r.Stdio[0], r.Stdio[1], r.Stdio[2], socket} {
		attr.Files = append(attr.Files, uintptr(t.of(f)))
	}
	enter.order(attr, t)
	child.Pid, err = syscall.ForkExec(program, []string{"berth-supervisor", r.Role}, attr)
	if err != nil {
		return fmt.Errorf("cannot start a child: %w", errs.OfFork(err))
	}
	return nil
}

// JoinError is the kernel's refusal of a namespace to join.
type JoinError struct{ Err error }

func (e *JoinError) Error() string { return e.Err.Error() }

// Unwrap returns the kernel's error.
func (e *JoinError) Unwrap() error { return e.Err }

// prepare makes the empty mount namespace.
func (p *Program) prepare() error {
	var err error
	if p.fds, err = os.OpenFile("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("cannot open the list of descriptors: %w", err)
	}
	if p.kept, err = keptDescriptors(); err != nil {
		return fmt.Errorf("cannot read the list of descriptors: %w", err)
	}
	done := make(chan error, 1)
	sysns.GoOnThread(func() { done <- p.makeEmpty() })
	if err := <-done; err != nil {
		return fmt.Errorf("cannot make an empty mount namespace: %w", err)
	}
	return nil
}

// makeEmpty is called on a thread of its own.
func (p *Program) makeEmpty() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	var err error
	if p.empty, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("berth", p.place, "tmpfs", flags, "size=4k,nr_inodes=4,mode=0555"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", p.place, err)
	}
	for _, name := range []string{order.RootName, order.ProcName} {
		if err := unix.Mkdir(filepath.Join(p.place, name), 0o555); err != nil {
			return fmt.Errorf("mkdir: %w", err)
		}
	}
	if err := unix.Mount("", p.place, "", unix.MS_REMOUNT|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("make the tmpfs read-only: %w", err)
	}
	if err := unix.Chdir(p.place); err != nil {
		return fmt.Errorf("chdir: %w", err)
	}
	// The old root ends up on top of the new one, where "." is it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	return nil
}

// Package confine starts programs that reach nothing but the directories that they are given: they have a root of their own, no
// network, and few capabilities from their first instruction on.
//
// A thread of this process gives up what the programs must not have, once, and then starts them. So a program needs no code for
// that, and the costly parts are shared: the network namespace, and the change from the host's mounts to an empty root. Programs
// do not meet in the network namespace: they can make no sockets. Where the kernel cannot deny sockets, each has a network
// namespace of its own. Their mount, PID, IPC and UTS namespaces always are.
package confine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysns"
)

// Starter starts confined programs. The kernel kills them when the starter is closed, or this process ends.
type Starter struct {
	// calls are executed by the starter's thread, one after the other.
	calls chan func()
	close func()
	// empty is the mount namespace of the empty root, from which those of programs are made.
	empty *os.File
	// files is /proc/self/fd of the host. The root of a program has no procfs.
	files *os.File
	// namespaces are those that each program gets, beside its mount namespace.
	namespaces uintptr
	denied     bool
}

// New makes a starter for programs that have the given capabilities (unix.CAP_...) and no others, and whose root has the given
// directories.
func New(dirs []string, capabilities ...uint) (*Starter, error) {
	s := &Starter{calls: make(chan func())}
	s.close = sync.OnceFunc(func() { close(s.calls) })
	prepared := make(chan error)
	sysns.GoOnThread(func() {
		defer s.closeFiles()
		err := s.prepare(dirs, capabilities)
		prepared <- err
		if err != nil {
			return // the thread ends with what it has changed
		}
		for call := range s.calls {
			call()
		}
	})
	if err := <-prepared; err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends the starter. Its programs must have been waited for: the kernel kills those that are left.
func (s *Starter) Close() { s.close() }

func (s *Starter) closeFiles() {
	for _, file := range []*os.File{s.empty, s.files} {
		if file != nil {
			file.Close()
		}
	}
}

// prepare confines the calling thread, except for the capabilities that it takes to start programs.
func (s *Starter) prepare(dirs []string, capabilities []uint) (err error) {
	if s.files, err = os.Open("/proc/self/fd"); err != nil {
		return fmt.Errorf("cannot open the descriptors of this process: %w", err)
	}
	own, err := os.Open("/proc/thread-self/ns")
	if err != nil {
		return fmt.Errorf("cannot open the namespaces of a thread: %w", err)
	}
	defer own.Close()
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot make the namespaces of confined programs: %w", err)
	}
	// Modes come from what a program writes, not from this process's environment.
	syscall.Umask(0)
	if err := enterEmptyRoot(dirs); err != nil {
		return err
	}
	empty, err := unix.Openat(int(own.Fd()), "mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open the mount namespace of an empty root: %w", err)
	}
	s.empty = os.NewFile(uintptr(empty), "mnt")
	if err := dropPrivileges(capabilities); err != nil {
		return err
	}
	s.namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	s.denied, err = denyCalls()
	if !s.denied {
		s.namespaces |= unix.CLONE_NEWNET
	}
	return err
}

// DeniesCalls reports whether the kernel denies programs the calls that they do not need, such as those that make sockets and user
// namespaces.
func (s *Starter) DeniesCalls() bool { return s.denied }

// Start starts cmd with view as its root. Its Path is absolute, and all of its standard files are set. The program begins with a
// working directory of the host, which it has to leave at once. The caller waits for the program before it closes the starter. ctx
// bounds the wait for other starts.
func (s *Starter) Start(ctx context.Context, cmd *exec.Cmd, view View) error {
	program, err := os.OpenFile(cmd.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open a program: %w", err)
	}
	defer program.Close()
	trees, err := view.open()
	if err != nil {
		return err
	}
	defer trees.close()
	started := make(chan error)
	select {
	case s.calls <- func() { started <- s.start(cmd, program, trees) }:
		if err := <-started; err != nil {
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := limit(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return nil
}

// limit changes what a child has inherited of this process and cannot change by itself. The child may have ended.
func limit(pid int) error {
	// The kernel takes 1 for no core dump at all. With 0 it would still start the program of core_pattern.
	if err := unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot forbid the core dumps of a confined program: %w", err)
	}
	// The kernel spares a daemon of a node when memory runs out, and not what it starts.
	file := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	score, err := os.ReadFile(file)
	if err == nil && strings.HasPrefix(string(score), "-") {
		err = os.WriteFile(file, []byte("0"), 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot set the oom_score_adj of a confined program: %w", err)
	}
	return nil
}

func (s *Starter) start(cmd *exec.Cmd, program *os.File, trees *trees) (err error) {
	if err := s.enterEmpty(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot make a mount namespace: %w", err)
	}
	// The program alone keeps its mounts. If this fails, the next start does: a program that runs has a caller that waits for it.
	defer func() {
		if leaveErr := s.enterEmpty(); err != nil {
			err = errors.Join(err, leaveErr)
		}
	}()
	if err := trees.attach(); err != nil {
		return err
	}
	if err := unix.Fchdir(int(s.files.Fd())); err != nil {
		return fmt.Errorf("cannot enter the directory of descriptors: %w", err)
	}
	cmd.Path = fmt.Sprint("./", program.Fd())
	// Without a session of its own, a program could signal the process group of this process by kill(0, ...).
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: s.namespaces, Pdeathsig: syscall.SIGKILL, Setsid: true}
	return cmd.Start()
}

func (s *Starter) enterEmpty() error {
	if err := unix.Setns(int(s.empty.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot enter the mount namespace of an empty root: %w", err)
	}
	return nil
}

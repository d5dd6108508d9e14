package sysns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// UserNamespace is a user namespace to be made.
type UserNamespace struct {
	// Pin is the path where it is pinned; the directory exists. "" for one that is
	// only held (see WithUserNamespace).
	Pin string
	// UIDs and GIDs map its ids to those of this process's user namespace.
	UIDs, GIDs []syscall.SysProcIDMap
	// Program is executed in it with Args while it is being made, and killed then:
	// a namespace of threads, which is what Go has, cannot be entered or left by
	// one of them. It must stay until it is killed.
	Program string
	Args    []string
}

// WithUserNamespace runs fn with a user namespace that is open as long as fn runs.
func WithUserNamespace(n UserNamespace, fn func(path string) error) error {
	holder, err := n.hold(0)
	if err != nil {
		return err
	}
	defer holder.end()
	return fn(holder.namespace("user"))
}

// holder is the process that new namespaces belong to until they are pinned. Its standard input ends with this
// process, so that it ends, too, when this one is killed.
type holder struct {
	cmd  *exec.Cmd
	life *os.File
}

// hold starts a holder in the user namespace and in those of flags, which the user
// namespace then owns: the kernel makes it first. Kind Unsupported where user
// namespaces are switched off, Exhausted where there are too many.
func (n *UserNamespace) hold(flags uintptr) (*holder, error) {
	// By a descriptor: the directories above may be closed to the namespace's root.
	program, err := os.Open(n.Program)
	if err != nil {
		return nil, fmt.Errorf("cannot open the program that holds a user namespace: %w", err)
	}
	defer program.Close()
	cmd := exec.Command("/proc/self/fd/3", n.Args...) //nolint:noctx // it ends with its holder
	cmd.Env = []string{"GOMAXPROCS=1"}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{program}
	stdin, life, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a user namespace: %w", err)
	}
	defer stdin.Close()
	cmd.Stdin = stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 unix.CLONE_NEWUSER | flags,
		UidMappings:                n.UIDs,
		GidMappings:                n.GIDs,
		GidMappingsEnableSetgroups: true,
		Setsid:                     true,
	}
	if err = cmd.Start(); err != nil {
		life.Close()
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return nil, fmt.Errorf("cannot make a user namespace: %w: user.max_user_namespaces or a limit like it is reached: %w", err, errs.Exhausted)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return nil, fmt.Errorf("cannot make a user namespace: %w: %w", err, errs.Unsupported)
	case err != nil:
		return nil, fmt.Errorf("cannot make a user namespace: %w", err)
	}
	return &holder{cmd, life}, nil
}

func (h *holder) namespace(kind string) string {
	return fmt.Sprintf("/proc/%d/ns/%s", h.cmd.Process.Pid, kind)
}

// enter brings the calling thread into the holder's namespaces.
func (h *holder) enter(kinds map[string]string) error {
	for kind := range kinds {
		ns, err := os.Open(h.namespace(kind))
		if err != nil {
			return err
		}
		err = unix.Setns(int(ns.Fd()), 0)
		ns.Close()
		if err != nil {
			return &os.PathError{Op: "setns", Path: ns.Name(), Err: err}
		}
	}
	return nil
}

func (h *holder) end() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
	h.life.Close()
}

// root is the namespace's user and group 0 outside of it.
func (n *UserNamespace) root() sysfd.Owner {
	of := func(mappings []syscall.SysProcIDMap) int {
		for _, m := range mappings {
			if m.ContainerID == 0 {
				return m.HostID
			}
		}
		return 0
	}
	return sysfd.Owner{UID: of(n.UIDs), GID: of(n.GIDs)}
}

// ownMessageQueues gives the message queues' directory of the calling thread's IPC
// namespace to owner. It belongs to the user that made the namespace: the host's
// root, which is not mapped in the user namespace.
func ownMessageQueues(owner sysfd.Owner) error {
	fs, err := unix.Fsopen("mqueue", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return nil // a kernel without message queues
	}
	if err != nil {
		return fmt.Errorf("cannot open the message queues: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("cannot open the message queues: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open the message queues: %w", err)
	}
	defer unix.Close(root)
	if err := unix.Fchownat(root, "", owner.UID, owner.GID, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot give the message queues to the pod's root: %w", err)
	}
	return nil
}

// asUser runs fn on the calling thread, which is locked, with another effective
// user, who has no capabilities. Other threads keep theirs.
func asUser(uid int, fn func() error) error {
	// The kernel takes any change of user for a set-user-ID program.
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("cannot read whether this process is dumpable: %w", err)
	}
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("cannot become user %d: %w", uid, errno)
	}
	fnErr := fn()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return errors.Join(fnErr, fmt.Errorf("cannot become root again: %w", errno))
	}
	return errors.Join(fnErr, unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(dumpable), 0, 0, 0))
}

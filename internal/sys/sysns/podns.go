package sysns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysmount"
)

// PodNamespaces are the namespaces of a pod that need not come from a pool, to be
// made.
type PodNamespaces struct {
	// User is the user namespace that owns the others, nil for the host's.
	User *UserNamespace
	// IPC, UTS and Net are the paths where they are pinned, "" for one not wanted.
	// Their directory exists. The loopback of Net is up.
	IPC, UTS, Net string
	// Hostname is set in the UTS namespace.
	Hostname string
	// Sysctls of the IPC namespace: file below /proc/sys to value.
	Sysctls map[string]string
}

// Make makes the namespaces and pins them. A failed or killed call may leave what
// Unpin and RemoveNetNS remove.
func (p PodNamespaces) Make() error {
	var flags uintptr
	kinds := map[string]string{}
	for _, ns := range []struct {
		kind, path string
		flag       uintptr
	}{{"ipc", p.IPC, unix.CLONE_NEWIPC}, {"uts", p.UTS, unix.CLONE_NEWUTS}, {"net", p.Net, unix.CLONE_NEWNET}} {
		if ns.path != "" {
			flags |= ns.flag
			kinds[ns.kind] = ns.path
		}
	}
	enter := func() error { return unix.Unshare(int(flags)) }
	if p.User != nil {
		holder, err := p.User.hold(flags)
		if err != nil {
			return err
		}
		defer holder.end()
		if err := Pin(holder.namespace("user"), p.User.Pin); err != nil {
			return err
		}
		enter = func() error { return holder.enter(kinds) }
	}
	if flags == 0 {
		return nil
	}
	done := make(chan error, 1)
	GoOnThread(func() { done <- p.makeOnThread(enter, kinds) })
	return <-done
}

// makeOnThread gives the thread back to Go only when it is in its first
// namespaces again; else it ends with its goroutine.
func (p PodNamespaces) makeOnThread(enter func() error, kinds map[string]string) error {
	homes := make([]*os.File, 0, len(kinds))
	defer func() {
		for _, home := range homes {
			if unix.Setns(int(home.Fd()), 0) != nil {
				return // leaves the thread locked
			}
			home.Close()
		}
		runtime.UnlockOSThread()
	}()
	for kind := range kinds {
		home, err := os.Open("/proc/thread-self/ns/" + kind)
		if err != nil {
			return fmt.Errorf("cannot open the thread's %s namespace: %w", kind, err)
		}
		homes = append(homes, home)
	}
	if err := enter(); err != nil {
		return fmt.Errorf("cannot make a pod's namespaces: %w", err)
	}
	if p.UTS != "" {
		if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
			return fmt.Errorf("cannot set the pod's hostname to %q: %w", p.Hostname, err)
		}
	}
	if p.Net != "" {
		if err := LoopbackUp(); err != nil {
			return fmt.Errorf("cannot bring up the loopback of a new network namespace: %w", err)
		}
	}
	if err := p.configureIPC(); err != nil {
		return err
	}
	for kind, path := range kinds {
		if err := Pin("/proc/thread-self/ns/"+kind, path); err != nil {
			return err
		}
	}
	return nil
}

// configureIPC is for the thread that is in the IPC namespace.
func (p PodNamespaces) configureIPC() error {
	if p.User == nil || p.IPC == "" {
		return WriteSysctls(p.Sysctls)
	}
	if err := ownMessageQueues(p.User.root()); err != nil {
		return err
	}
	if len(p.Sysctls) == 0 {
		return nil
	}
	// The kernel demands the root of the namespace, whatever capabilities the thread has.
	return asUser(p.User.root().UID, func() error { return WriteSysctls(p.Sysctls) })
}

// Pin binds a namespace file of /proc at path, which it creates.
func Pin(namespace, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return fmt.Errorf("cannot pin a namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(namespace, path, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("cannot pin a namespace at %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// Unpin removes a pin, mounted or not. Nil when there is none.
func Unpin(path string) error {
	if err := sysmount.Detach(path); err != nil {
		return fmt.Errorf("cannot unpin a namespace: %w", err)
	}
	if err := errs.IgnoreNotExist(os.Remove(path)); err != nil {
		return fmt.Errorf("cannot remove the pin of a namespace: %w", err)
	}
	return nil
}

// SysctlError is the error of a sysctl that could not be written.
type SysctlError struct {
	// File is below /proc/sys.
	File string
	Err  error
}

func (e *SysctlError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *SysctlError) Unwrap() error { return e.Err }

// WriteSysctls writes each value to its file below /proc/sys, in the namespaces of
// the calling thread. Kind Invalid when the kernel has no such sysctl, does not let it be written,
// or refuses the value.
func WriteSysctls(sysctls map[string]string) error {
	var dirs SysctlDirs
	defer dirs.Close()
	for file, value := range sysctls {
		err := dirs.Write(file, value)
		if slices.ContainsFunc(refusals(), func(errno error) bool { return errors.Is(err, errno) }) {
			err = fmt.Errorf("%w: %w", errs.Invalid, err)
		}
		if err != nil {
			return &SysctlError{file, fmt.Errorf("cannot set the sysctl %s to %q: %w", file, value, err)}
		}
	}
	return nil
}

// refusals are the kernel's answers to a sysctl that it does not have, that is a
// directory or cannot be written, and to a value that it does not take.
func refusals() []error {
	return []error{unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ENAMETOOLONG, unix.EACCES, unix.EPERM, unix.EINVAL, unix.ERANGE, unix.E2BIG}
}

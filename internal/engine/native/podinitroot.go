package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/undo"
)

// The root of every pod's init is a file system of its own, which is read-only itself:
// whatever handle on it a container gets, there is no mount through which it can be
// written. It has a copy of the program, so that /proc/1/exe is not the host's, and the
// copy can be executed but not read: for the kernel the init is no process that others
// may trace from its execve on. The daemon mounts the file system when the first pod
// needs it, and detaches it when it ends: the pods keep it.

func (e *Engine) podInitDir() string { return filepath.Join(e.cfg.StateDir, "pod-init") }

// podInitRoot makes the root of pods' inits, once.
func (e *Engine) podInitRoot(ctx context.Context) (dir string, err error) {
	e.sealing.Lock()
	defer e.sealing.Unlock()
	dir = e.podInitDir()
	if e.sealed {
		return dir, nil
	}
	if err := sealProgram(ctx, dir, e.cfg.PodInit); err != nil {
		return "", fmt.Errorf("cannot make the root of a pod's init: %w", err)
	}
	e.sealed = true
	return dir, nil
}

// unseal detaches the root of pods' inits, also one that a predecessor left.
func (e *Engine) unseal() error {
	e.sealing.Lock()
	defer e.sealing.Unlock()
	e.sealed = false
	if err := sysmount.Detach(e.podInitDir()); err != nil {
		return fmt.Errorf("cannot detach the root of the pods' inits: %w", err)
	}
	return nil
}

func sealProgram(ctx context.Context, dir, program string) (err error) {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("berth-pod-init", dir, "tmpfs", flags, "mode=0755"); err != nil {
		return fmt.Errorf("cannot mount a tmpfs on %s: %w", dir, err)
	}
	var steps undo.Stack
	defer steps.OnError(ctx, &err)
	steps.Push("detach the root of pods' inits", func(context.Context) error { return sysmount.Detach(dir) })
	source, err := os.Open(program)
	if err != nil {
		return err
	}
	defer source.Close()
	for _, name := range []string{"dev", "procfs"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	if err := copyLastCapability(dir); err != nil {
		return err
	}
	if err := copyUnreadable(source, filepath.Join(dir, ocispec.PodInitProgram)); err != nil {
		return err
	}
	if err := labelRoot(source, dir, "", "dev", "procfs", "proc", "proc/sys", "proc/sys/kernel", lastCapability, ocispec.PodInitProgram); err != nil {
		return err
	}
	return makeReadOnly(ctx, dir, flags)
}

// makeReadOnly makes the file system itself read-only. The kernel refuses while a file of
// it is open for writing: what this process starts at the same time has a duplicate of each
// of its descriptors up to the execve.
func makeReadOnly(ctx context.Context, dir string, flags uintptr) error {
	ctx, stop := context.WithTimeout(ctx, confinePatience)
	defer stop()
	for {
		err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY|flags, "")
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.EBUSY) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
			continue
		}
		return fmt.Errorf("cannot make %s read-only: %w", dir, err)
	}
}

// lastCapability is the one file of procfs that libcontainer reads in the init's root.
const lastCapability = "proc/sys/kernel/cap_last_cap"

// copyLastCapability puts what libcontainer reads there into a plain file.
func copyLastCapability(dir string) error {
	data, err := os.ReadFile("/" + lastCapability)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, lastCapability)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o444)
}

// copyUnreadable makes a copy that can be executed and no more.
func copyUnreadable(source io.Reader, path string) error {
	target, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o100)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		return errors.Join(err, target.Close())
	}
	return errors.Join(target.Chmod(0o111), target.Close())
}

// labelRoot gives files below dir the SELinux label that containers may read and execute:
// the policy's for layers, or the program's where the policy has none. The program's own
// is of no use where the policy lets containers enter no file with the label of /usr.
func labelRoot(program *os.File, dir string, names ...string) error {
	label := selinux.ReadOnlyFiles()
	if label == "" {
		var err error
		label, err = sysfile.Xattr(program, selinux.Attribute)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	for _, name := range names {
		err := unix.Lsetxattr(filepath.Join(dir, name), selinux.Attribute, []byte(label), 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("cannot label %s: %w", filepath.Join(dir, name), err)
		}
	}
	return nil
}

// ownIDs says which users and groups this process's user namespace has: in a container
// they may be few.
func ownIDs() (ids ocispec.UserNamespace, err error) {
	for file, m := range map[string]*ocispec.IDMapping{"/proc/self/uid_map": &ids.UIDs, "/proc/self/gid_map": &ids.GIDs} {
		data, err := os.ReadFile(file)
		if err != nil {
			return ids, fmt.Errorf("cannot read which ids there are: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			var first, outside, count uint32
			if _, err := fmt.Sscan(line, &first, &outside, &count); err != nil {
				return ids, fmt.Errorf("cannot read which ids there are: %s: %w", file, err)
			}
			m.Length = max(m.Length, first+count)
		}
	}
	return ids, nil
}

// confinePatience bounds the wait for a process between its fork and its execve, and for an
// init that has been executed: it has a dozen system calls to make.
const confinePatience = 10 * time.Second

// awaitConfined returns when the init is what it has to be before a container may see
// it: without descriptors, and with a filter beside the one that it was started with.
func (e *Engine) awaitConfined(ctx context.Context, pid int) error {
	ctx, stop := context.WithTimeout(ctx, confinePatience)
	defer stop()
	for {
		confined, err := e.confined(pid)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot start the pod's init: process %d ended before it confined itself; where a security module refused its program, the kernel's audit log has the reason", pid)
		}
		if err != nil {
			return fmt.Errorf("cannot start the pod's init: %w", err)
		}
		if confined {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot start the pod's init: process %d does not confine itself: %w", pid, errs.Unavailable)
		case <-time.After(time.Millisecond):
		}
	}
}

func (e *Engine) confined(pid int) (bool, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return false, err
	}
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return false, err
	}
	return len(files) == 0 && (!e.host.Seccomp || filters(string(status)) >= 2), nil
}

// filters is how many seccomp filters a process has, by its status. A kernel before 5.9
// does not count them.
func filters(status string) int {
	for line := range strings.Lines(status) {
		if count, ok := strings.CutPrefix(line, "Seccomp_filters:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(count))
			if err == nil {
				return n
			}
		}
	}
	return 2
}

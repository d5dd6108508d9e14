package podinit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/undo"
)

// The root of every pod's init is its own file system, which is read-only itself: a container
// that gets a handle on it finds no mount through which it can write. It has a copy of the
// program, so that /proc/1/exe is not the host's. The copy can be executed but not read:
// from its execve on the kernel lets no process trace the init. The daemon mounts the file
// system when the first pod needs it, and detaches it when the daemon ends: the pods keep it.

// Root is the root of all pods' inits. All methods are safe for concurrent use.
type Root struct {
	dir, program string
	// mode is that of the copy.
	mode os.FileMode

	mu      sync.Mutex
	mounted bool
}

// NewRoot returns the root that is mounted on dir and has a copy of program.
func NewRoot(dir, program string) *Root { return &Root{dir: dir, program: program, mode: 0o111} }

// NewReadableRoot returns a root for the root containers of sandboxes, whose kernels read the program. No container
// sees a process of it, because the sandbox is between them.
func NewReadableRoot(dir, program string) *Root {
	return &Root{dir: dir, program: program, mode: 0o555}
}

// Mount mounts the root where it is not mounted yet, and returns its directory.
func (r *Root) Mount(ctx context.Context) (dir string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mounted {
		return r.dir, nil
	}
	if err := sealProgram(ctx, r.dir, r.program, r.mode); err != nil {
		return "", fmt.Errorf("cannot make the root of a pod's init: %w", err)
	}
	r.mounted = true
	return r.dir, nil
}

// Detach detaches the root, also one that an earlier daemon left. Pods that use it keep it.
func (r *Root) Detach() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mounted = false
	if err := sysmount.Detach(r.dir); err != nil {
		return fmt.Errorf("cannot detach the root of the pods' inits: %w", err)
	}
	return nil
}

// sealProgram mounts a read-only tmpfs on dir, with a copy of program.
func sealProgram(ctx context.Context, dir, program string, mode os.FileMode) (err error) {
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
	if err := copyProgram(source, filepath.Join(dir, ocispec.PodInitProgram), mode); err != nil {
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
	ctx, stop := context.WithTimeout(ctx, confineTimeout)
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

// copyProgram makes a copy that has the mode.
func copyProgram(source io.Reader, path string, mode os.FileMode) error {
	target, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o100)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		return errors.Join(err, target.Close())
	}
	return errors.Join(target.Chmod(mode), target.Close())
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

// confineTimeout bounds the wait for a process between its fork and its execve, and for an
// init that has been executed: it has a dozen system calls to make.
const confineTimeout = 10 * time.Second

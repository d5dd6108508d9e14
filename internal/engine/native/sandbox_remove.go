package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/volume"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// StopSandbox kills the init of the shared PID namespace, if there is one, and frees the
// shared memory that the pod's processes left: a kubelet keeps the sandbox of a pod that has
// completed until the pod is deleted, which may be never.
func (e *Engine) StopSandbox(ctx context.Context, id string) error {
	paths := e.sandboxPaths(id)
	if err := e.podCgroups.RemovePlaceholder(paths.placeholder); err != nil {
		return err
	}
	if e.bundles.Exists(id) {
		if err := errs.IgnoreNotFound(e.cfg.Supervisor.Signal(ctx, id, syscall.SIGKILL, true)); err != nil {
			return err
		}
	}
	if err := errors.Join(detachTree(paths.shm), sysns.Unpin(paths.ipc)); err != nil {
		return fmt.Errorf("cannot stop sandbox %s: %w", id, err)
	}
	return nil
}

// ReleaseSandbox removes what a pod that has completed does not need: a kubelet keeps
// its sandbox, and its exited containers, until the pod is deleted.
func (e *Engine) ReleaseSandbox(ctx context.Context, id string) error {
	if err := e.release(ctx, id, e.sandboxPaths(id), false); err != nil {
		return fmt.Errorf("cannot release sandbox %s: %w", id, err)
	}
	e.meter.Forget(id)
	return nil
}

// release removes the sandbox's init, namespaces, mounts and cgroup, each nil when it
// is absent. last says that no containers remain.
func (e *Engine) release(ctx context.Context, id string, paths sandboxPaths, last bool) error {
	return errors.Join(
		e.podInits().Remove(ctx, id),
		sysns.Unpin(paths.pid),
		sysns.RemoveNetNS(paths.netns),
		sysns.Unpin(paths.ipc),
		sysns.Unpin(paths.uts),
		sysns.Unpin(paths.user),
		e.releaseImages(ctx, id, paths),
		detachTree(paths.shm),
		e.podCgroups.RemovePlaceholder(paths.placeholder),
		e.podCgroups.RemoveParent(ctx, id, paths.ownCgroup, last),
	)
}

// RemoveSandbox removes all that a sandbox may have; what is absent is no error. It removes
// the sandbox's directory in the state directory last, because the directory records the
// rest.
func (e *Engine) RemoveSandbox(ctx context.Context, id string) error {
	paths := e.sandboxPaths(id)
	err := errors.Join(e.release(ctx, id, paths, true), removeFiles(id, paths.filesDir))
	if err != nil {
		return fmt.Errorf("cannot remove sandbox %s: %w", id, err)
	}
	if err := os.RemoveAll(paths.dir); err != nil {
		return fmt.Errorf("cannot remove sandbox %s: %w", id, err)
	}
	e.meter.Forget(id)
	e.selinux.Release(id)
	return nil
}

// runningOf returns a function that lists the first processes of all running containers.
func runningOf(s *supervisor.Client) func(context.Context, string) ([]int, error) {
	return func(ctx context.Context, _ string) (pids []int, err error) {
		containers, err := s.List(ctx)
		for i := range containers {
			if pid := containers[i].Pid; pid != 0 && stateOf(containers[i].State) != engine.StateStopped {
				pids = append(pids, pid)
			}
		}
		return pids, err
	}
}

// releaseImages releases the images that were mounted for the sandbox.
func (e *Engine) releaseImages(ctx context.Context, id string, paths sandboxPaths) error {
	dir := paths.volumes
	if _, err := os.Lstat(paths.dir); errors.Is(err, os.ErrNotExist) {
		dir = "" // the sandbox is from before a reboot
	}
	return volume.Images{Rootfs: e.cfg.Rootfs}.Release(ctx, id, dir)
}

func detachTree(path string) error {
	if err := sysmount.Detach(path); err != nil {
		return fmt.Errorf("cannot unmount the sandbox's shm: %w", err)
	}
	return nil
}

// removeFiles removes the directory that link points to. It is the sandbox's only
// if it is named after it.
func removeFiles(id, link string) error {
	dir, err := os.Readlink(link)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read where the sandbox's files are: %w", err)
	}
	if !filepath.IsAbs(dir) || !strings.HasSuffix(filepath.Base(dir), id) {
		return fmt.Errorf("the sandbox's files are recorded in %q, which is not named after it", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot remove the sandbox's files: %w", err)
	}
	return nil
}

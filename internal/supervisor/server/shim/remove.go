package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// deleteTimeout bounds the deletion by the shim, and then by its program: after that, berth removes the
// container without them.
const deleteTimeout = 5 * time.Second

// Remove removes what the shim and this package keep of a container, whose processes are dead, and ends the
// shim with the last container of its pod. A shim that is missing, fails or hangs does not keep the
// container: then Remove deletes its state itself. Nil when there is none.
func (s *Shims) Remove(ctx context.Context, id string) error {
	f := s.files(id)
	if _, err := os.Lstat(f.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	st, err := f.read()
	if err == nil {
		return s.Of(st.Handler).remove(ctx, id, st)
	}
	if !errors.Is(err, errs.NotFound) {
		s.log.Warn("the shim does not delete a container", "container", id, "error", err)
	}
	return f.remove()
}

// remove removes the directory of a container.
func (f files) remove() error {
	if err := removeTree(f.dir); err != nil {
		return fmt.Errorf("cannot remove the container's directory: %w", err)
	}
	return nil
}

// removeTree removes a directory to which a shim, or its OCI runtime, may have left mounts when it was killed.
// While one stays mounted, nothing is removed: it would be from the mount's source.
func removeTree(dir string) error {
	if err := sysmount.UnmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (r *Runtime) remove(ctx context.Context, id string, st *state) error {
	s := r.all
	unlock, err := s.locks.Lock(ctx, st.Pod)
	if err != nil {
		return err
	}
	defer unlock()
	hangs := false
	if err := r.delete(ctx, id, st); err != nil {
		hangs = errors.Is(err, errs.Deadline)
		s.log.Warn("a shim does not delete a container; berth deletes its state", "container", id, "handler", r.handler.Name, "error", err)
		if err := r.deleteByProgram(ctx, id, r.all.files(id).dir); err != nil {
			s.log.Warn("the program of a shim does not delete a container; berth deletes its state", "container", id, "handler", r.handler.Name, "error", err)
		}
	}
	own := filepath.Join(r.handler.Root, namespace, id)
	if _, err := os.Lstat(own); err == nil {
		// A runtime that was killed may have left a mount of its program there.
		if err := removeTree(own); err != nil {
			return fmt.Errorf("cannot remove the state that the OCI runtime has of it: %w", err)
		}
	}
	s.ends.forget(id)
	others, err := s.others(st.Pod, id)
	if err != nil {
		return err
	}
	if !others || r.isSandbox(st.Pod, id) { // without the sandbox, the others have ended
		_ = os.Remove(filepath.Join(r.handler.Root, namespace)) // unless other pods have containers there
		if err := s.end(ctx, st.Pod, !hangs); err != nil {
			return err
		}
	}
	return s.files(id).remove() // while the pod is locked: the next removal sees whether it is the last one
}

// delete has the shim delete a container. Nil when the shim and its runtime do not have it. A create that was given up may go on
// in the shim for a moment: what it makes is killed.
func (r *Runtime) delete(ctx context.Context, id string, st *state) error {
	if r.isSandbox(st.Pod, id) {
		return nil // it ends with the shim
	}
	f := r.all.files(id)
	ctx, stop := context.WithTimeout(ctx, f.patience(deleteTimeout))
	defer stop()
	if f.deleted() { // by endCreated, which may not have ended
		return errors.Join(st.Cgroups.Kill(ctx), r.deleteByProgram(ctx, id, f.dir))
	}
	client, err := r.all.client(ctx, st.Pod)
	if errors.Is(err, errs.NotFound) {
		return nil // its shim did not start
	}
	if err == nil {
		if r.handler.IsSandbox {
			if r.endCreated(ctx, client, id) {
				return nil
			}
			_ = client.Kill(ctx, id, "", int(syscall.SIGKILL), true) // it may have ended
		}
		_, err = client.Delete(ctx, id, "")
		if killErr := st.Cgroups.Kill(ctx); killErr != nil {
			return killErr
		}
		if errs.IgnoreNotFound(err) != nil {
			_, err = client.Delete(ctx, id, "")
		}
	}
	if errs.IgnoreNotFound(err) != nil {
		return r.handler.fault(ctx, stageDelete, err)
	}
	if err != nil && r.handler.IsSandbox && !f.exited() {
		// A shim that gave up the create, when the supervisor died, has forgotten a container that its sandbox may
		// have. The program fails for one that was not made at all.
		if err := r.deleteByProgram(ctx, id, f.dir); err != nil {
			r.all.log.Debug("neither a shim nor its program has a container", "container", id, "handler", r.handler.Name, "error", err)
		}
	}
	return nil
}

// deleteByProgram deletes a container or a sandbox whose shim cannot. dir is its bundle. A deletion goes on when the
// supervisor dies, and the removal of the next supervisor waits for its end.
func (r *Runtime) deleteByProgram(ctx context.Context, id, dir string) error {
	ctx, stop := context.WithTimeout(ctx, deleteTimeout)
	defer stop()
	path := filepath.Join(dir, deleteLockName)
	lock, err := launch.AwaitLock(ctx, path)
	if err != nil {
		return r.handler.fault(ctx, stageDelete, err)
	}
	lock.Close() // the launcher takes it
	_, _, err = r.runProgram(ctx, &programRun{
		args: r.arguments(id, "-bundle", dir, "delete"), dir: dir, lock: path, persist: true,
	})
	if err != nil {
		return r.handler.fault(ctx, stageDelete, err)
	}
	return nil
}

// others reports whether a pod has another container.
func (s *Shims) others(pod, id string) (bool, error) {
	ids, err := s.IDs()
	if err != nil {
		return false, err
	}
	for _, each := range ids {
		if st, err := s.files(each).read(); each != id && err == nil && st.Pod == pod {
			return true, nil
		}
	}
	return false, nil
}

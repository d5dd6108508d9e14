package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"golang.org/x/sync/errgroup"
)

// StopSandbox stops the sandbox and its containers and detaches its network. Nil
// when there is no such sandbox. Once asked it is pursued to the end, whoever
// waits.
func (s *Service) StopSandbox(ctx context.Context, id string) error {
	return s.endSandbox(ctx, id, s.stopSandboxRequest)
}

// RemoveSandbox stops and removes the sandbox and its containers. Nil when there
// is no such sandbox. Once asked it is pursued to the end, whoever waits.
func (s *Service) RemoveSandbox(ctx context.Context, id string) error {
	return s.endSandbox(ctx, id, s.removeSandboxRequest)
}

func (s *Service) endSandbox(ctx context.Context, id string, request func(*SandboxRecord) *job.Request) error {
	full, err := s.sandboxID(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	rec, err := s.sandboxes.Get(full)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	_, err = s.jobs.Do(ctx, request(rec))
	return err
}

func (s *Service) stopSandboxRequest(rec *SandboxRecord) *job.Request {
	return &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindStop,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.stopSandbox(ctx, j, rec.ID)
		},
	}
}

func (s *Service) removeSandboxRequest(rec *SandboxRecord) *job.Request {
	return &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindRemove,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.removeSandbox(ctx, j, rec.ID)
		},
	}
}

// holds reports whether namespaces of a sandbox may be there.
func (s *Service) holds(rec *SandboxRecord) bool { return len(s.view(rec).Namespaces) > 0 }

func (s *Service) stopSandbox(ctx context.Context, j *job.Job, id string) error {
	rec, err := s.sandboxes.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err) // its creation was cancelled and undone
	}
	switch rec.State {
	case SandboxStopped:
		if !s.holds(rec) {
			return nil
		}
	case SandboxReady:
		j.Stage("write record", "the state directory")
		if _, err := s.sandboxes.Update(id, func(r *SandboxRecord) error {
			r.State, r.Message = SandboxStopping, "it was asked to stop"
			return nil
		}); err != nil {
			return fmt.Errorf("cannot stop sandbox %q: %w", id, err)
		}
	case SandboxCreating, SandboxRemoving:
		// What an attempt left that could not be undone yet: its only way is out.
		return s.removeSandbox(ctx, j, id)
	case SandboxStopping:
	}
	if err := s.teardown(ctx, j, id, SandboxStopped); err != nil {
		s.retrySandbox(ctx, id)
		return fmt.Errorf("cannot stop sandbox %q: %w", id, err)
	}
	_, err = s.sandboxes.Update(id, func(r *SandboxRecord) error {
		r.State, r.Network = SandboxStopped, nil // its addresses may be another's now
		if r.Engine != nil {
			r.Engine = s.opts.Engine.ReleasedSandbox(r.Engine)
		}
		return nil
	})
	if err != nil {
		s.retrySandbox(ctx, id)
		return fmt.Errorf("cannot stop sandbox %q: %w", id, err)
	}
	s.retries.done(id)
	s.tombstones.touch(id)
	return nil
}

func (s *Service) removeSandbox(ctx context.Context, j *job.Job, id string) error {
	rec, err := s.sandboxes.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if rec.visible() { // a half-made one stays hidden unless its teardown fails
		j.Stage("write record", "the state directory")
		if err := s.markRemoving(id, "it was asked to go"); err != nil {
			return fmt.Errorf("cannot remove sandbox %q: %w", id, err)
		}
	}
	if err := s.teardown(ctx, j, id, SandboxRemoving); err != nil {
		err = errors.Join(err, s.markRemoving(id, err.Error()))
		s.retrySandbox(ctx, id)
		return fmt.Errorf("cannot remove sandbox %q: %w", id, err)
	}
	return nil
}

func (s *Service) markRemoving(id, why string) error {
	_, err := s.sandboxes.Update(id, func(r *SandboxRecord) error {
		r.State, r.Message = SandboxRemoving, why
		return nil
	})
	return errs.IgnoreNotFound(err)
}

// teardown undoes a sandbox, however far it came: with SandboxStopped up to
// where its record, its files and its exited containers remain, with SandboxRemoving to the end. It runs
// every step, whether or not those before succeeded, and joins their errors; a
// step is nil when its thing is absent. The record goes only when all is gone.
//
// It is the rollback of a failed start, StopPodSandbox, RemovePodSandbox and
// recovery in one, so it needs nothing but the record, and it does not end with
// the job's context: each step has its own time.
func (s *Service) teardown(ctx context.Context, j *job.Job, id string, to SandboxState) error {
	ctx = context.WithoutCancel(ctx)
	var failed []error
	step := func(stage, waitsFor string, undo func(context.Context) error) {
		j.Stage(stage, waitsFor)
		ctx, cancel := context.WithTimeout(ctx, s.limits.Step)
		defer cancel()
		failed = append(failed, undo(ctx))
	}
	step("end containers", "the jobs of its containers", func(ctx context.Context) error {
		return s.endContainers(ctx, id, to)
	})
	step("stop sandbox", "the engine", func(ctx context.Context) error {
		return s.call(ctx, id, "stop sandbox", s.opts.Engine.StopSandbox)
	})
	step("detach network", "the network's plugins", func(ctx context.Context) error {
		return s.detach(ctx, id)
	})
	if to == SandboxStopped && errors.Join(failed...) == nil {
		// Not before: plugins that are asked again find the namespace.
		step("release sandbox", "the engine", func(ctx context.Context) error {
			return s.call(ctx, id, "release sandbox", s.opts.Engine.ReleaseSandbox)
		})
	}
	if to == SandboxRemoving {
		step("remove sandbox", "the engine", func(ctx context.Context) error {
			return s.call(ctx, id, "remove sandbox", s.opts.Engine.RemoveSandbox)
		})
	}
	if err := errors.Join(failed...); err != nil || to != SandboxRemoving {
		return err
	}
	j.Stage("delete record", "the state directory")
	if err := s.sandboxes.Delete(id); err != nil {
		return err
	}
	s.retries.done(id)
	s.tombstones.touch(id)
	return nil
}

// endContainers stops or removes all containers of a sandbox, those that are
// being made included, each through the job of its own key.
func (s *Service) endContainers(ctx context.Context, sandboxID string, to SandboxState) error {
	var g errgroup.Group
	for _, rec := range s.containers.All() {
		if rec.SandboxID != sandboxID {
			continue
		}
		g.Go(func() error {
			return errs.Guard("end of container "+rec.ID, func() error {
				switch {
				case to == SandboxRemoving || !rec.visible():
					return s.removeAndWait(ctx, rec)
				case rec.State == ContainerCreated:
					return s.endCreated(ctx, rec)
				}
				return s.stopAndWait(ctx, rec, 0)
			})
		})
	}
	return g.Wait()
}

// createdPause is between two looks at a container whose end nobody reports.
const createdPause = 100 * time.Millisecond

// endCreated ends the init of a container that was never started: it waits in the
// namespaces and the cgroup of its sandbox, which is stopping.
func (s *Service) endCreated(ctx context.Context, rec *ContainerRecord) error {
	_, err := s.jobs.Do(ctx, &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindStop,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			j.Stage("kill", "the engine")
			return rec.ID, s.killCreated(ctx, rec.ID)
		},
	})
	return err
}

func (s *Service) killCreated(ctx context.Context, id string) error {
	for {
		news := s.ends.of(id)
		rec, err := s.containers.Get(id)
		if err != nil || rec.State == ContainerExited || rec.startError() != "" {
			s.ends.tell(id)
			return errs.IgnoreNotFound(err)
		}
		if err := s.signal(ctx, id, syscall.SIGKILL, true); err != nil {
			return fmt.Errorf("cannot kill container %q, which was not started: %w", id, err)
		}
		select {
		case <-news:
			continue
		case <-time.After(createdPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if gone, err := s.gone(ctx, id); err != nil {
			return fmt.Errorf("cannot tell whether container %q has ended: %w", id, err)
		} else if gone {
			s.settle(id, "its sandbox was stopped before it was started")
		}
	}
}

// RemoveContainer kills if need be and removes the container. Nil when there is
// none.
func (s *Service) RemoveContainer(ctx context.Context, id string) error {
	full, err := s.containerID(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	rec, err := s.containers.Get(full)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	return s.removeAndWait(ctx, rec)
}

func (s *Service) removeAndWait(ctx context.Context, rec *ContainerRecord) error {
	s.graces.end(rec.ID) // a stop that waits out its grace period need not
	_, err := s.jobs.Do(ctx, s.removeContainerRequest(rec))
	return err
}

func (s *Service) removeContainerRequest(rec *ContainerRecord) *job.Request {
	return &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindRemove,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.removeContainer(ctx, j, rec.ID)
		},
	}
}

func (s *Service) removeContainer(ctx context.Context, j *job.Job, id string) error {
	rec, err := s.containers.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if rec.visible() && !rec.Removing {
		j.Stage("write record", "the state directory")
		if _, err := s.containers.Update(id, func(r *ContainerRecord) error {
			r.Removing = true
			return nil
		}); err != nil {
			return fmt.Errorf("cannot remove container %q: %w", id, err)
		}
	}
	if err := s.teardownContainer(ctx, j, id); err != nil {
		s.retryContainer(ctx, id)
		return fmt.Errorf("cannot remove container %q: %w", id, err)
	}
	return nil
}

// teardownContainer is teardown for one container.
func (s *Service) teardownContainer(ctx context.Context, j *job.Job, id string) error {
	rec, err := s.containers.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	ctx = context.WithoutCancel(ctx)
	var killErr error
	if rec.alive() {
		killErr = s.kill(ctx, j, id)
	}
	j.Stage("remove container", "the engine")
	removing, cancel := context.WithTimeout(ctx, s.limits.Step)
	defer cancel()
	if err := s.call(removing, id, "remove container", s.opts.Engine.Remove); err != nil {
		return errors.Join(killErr, err)
	}
	if killErr != nil {
		// Remove killed what the signal could not: nothing is left to report.
		s.log.Warn("a container was removed that could not be stopped", "container", id, "err", killErr)
	}
	if rec.State == ContainerCreating {
		// Nobody knows of its log, and a dying init may have complained into it.
		if err := s.call(removing, id, "remove the log of a half-made container", func(context.Context, string) error {
			return removeLog(rec)
		}); err != nil {
			return err
		}
	}
	j.Stage("delete record", "the state directory")
	if err := s.containers.Delete(id); err != nil {
		return err
	}
	s.ends.tell(id)
	s.retries.done(id)
	s.tombstones.touch(id)
	return nil
}

// removeLog removes the log that was made for this container. A log that was there
// before it is somebody else's, and so is what a link in its path leads to.
func removeLog(rec *ContainerRecord) error {
	if rec.LogPath == "" {
		return nil
	}
	path := filepath.Clean(rec.Config.Get().GetLogPath())
	dir, err := os.Open(strings.TrimSuffix(rec.LogPath, path))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return sysproc.RemoveBornSince(dir, path, time.Unix(0, rec.CreatedAt))
}

// retrySandbox asks again, after a pause, for the teardown that the record tells.
func (s *Service) retrySandbox(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	s.retries.later(id, func() {
		rec, err := s.sandboxes.Get(id)
		switch {
		case err != nil:
			s.retries.done(id)
		case rec.State == SandboxStopping:
			s.pursue(ctx, s.stopSandboxRequest(rec))
		default:
			s.pursue(ctx, s.removeSandboxRequest(rec))
		}
	})
}

func (s *Service) retryContainer(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	s.retries.later(id, func() {
		rec, err := s.containers.Get(id)
		if err != nil {
			s.retries.done(id)
			return
		}
		s.pursue(ctx, s.removeContainerRequest(rec))
	})
}

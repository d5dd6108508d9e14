package pod

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/record"
	"golang.org/x/sync/errgroup"
)

// StopSandbox stops the sandbox and its containers and detaches its network. Nil
// when there is no such sandbox. The job continues to its end, also when the
// caller gives up.
func (s *Sandboxes) StopSandbox(ctx context.Context, id string) error {
	return s.endSandbox(ctx, id, s.stopSandboxRequest)
}

// RemoveSandbox stops and removes the sandbox and its containers. Nil when there
// is no such sandbox. The job continues to its end, also when the caller gives up.
func (s *Sandboxes) RemoveSandbox(ctx context.Context, id string) error {
	return s.endSandbox(ctx, id, s.removeSandboxRequest)
}

func (s *Sandboxes) endSandbox(ctx context.Context, id string, request func(*record.Sandbox) *job.Request) error {
	full, err := s.records.SandboxID(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	rec, err := s.records.Sandboxes.Get(full)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	_, err = s.jobs.Do(ctx, request(rec))
	return err
}

func (s *Sandboxes) stopSandboxRequest(rec *record.Sandbox) *job.Request {
	return &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindStop,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.stopSandbox(ctx, j, rec.ID)
		},
	}
}

func (s *Sandboxes) removeSandboxRequest(rec *record.Sandbox) *job.Request {
	return &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindRemove,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, s.removeSandbox(ctx, j, rec.ID)
		},
	}
}

func (s *Sandboxes) stopSandbox(ctx context.Context, j *job.Job, id string) error {
	rec, err := s.records.Sandboxes.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err) // its creation was cancelled and rolled back
	}
	switch rec.State {
	case record.SandboxStopped:
		if !rec.HoldsNamespaces(s.engine) {
			return nil
		}
	case record.SandboxReady:
		j.Stage("write record", "the state directory")
		if _, err := s.records.Sandboxes.Update(id, func(r *record.Sandbox) error {
			r.State, r.Message = record.SandboxStopping, "stop was requested"
			return nil
		}); err != nil {
			return fmt.Errorf("cannot stop sandbox %q: %w", id, err)
		}
	case record.SandboxCreating, record.SandboxRestoring, record.SandboxRemoving:
		// What a failed attempt left can only be removed.
		return s.removeSandbox(ctx, j, id)
	case record.SandboxStopping:
	}
	if err := s.teardown(ctx, j, id, record.SandboxStopped); err != nil {
		s.retrySandbox(ctx, id)
		return fmt.Errorf("cannot stop sandbox %q: %w; berth goes on trying", id, err)
	}
	_, err = s.records.Sandboxes.Update(id, func(r *record.Sandbox) error {
		r.State, r.Network = record.SandboxStopped, nil // another sandbox may have its addresses now
		if r.Engine != nil {
			r.Engine = s.engine.ReleasedSandbox(r.Engine)
		}
		return nil
	})
	if err != nil {
		s.retrySandbox(ctx, id)
		return fmt.Errorf("cannot stop sandbox %q: %w; berth goes on trying", id, err)
	}
	s.retries.Done(id)
	s.tombstones.Touch(id)
	return nil
}

func (s *Sandboxes) removeSandbox(ctx context.Context, j *job.Job, id string) error {
	rec, err := s.records.Sandboxes.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if rec.Visible() { // an unfinished one stays hidden unless its teardown fails
		j.Stage("write record", "the state directory")
		if err := s.markRemoving(id, "removal was requested"); err != nil {
			return fmt.Errorf("cannot remove sandbox %q: %w", id, err)
		}
	}
	if err := s.teardown(ctx, j, id, record.SandboxRemoving); err != nil {
		err = errors.Join(err, s.markRemoving(id, err.Error()))
		s.retrySandbox(ctx, id)
		return fmt.Errorf("cannot remove sandbox %q: %w; berth goes on trying", id, err)
	}
	return nil
}

func (s *Sandboxes) markRemoving(id, why string) error {
	_, err := s.records.Sandboxes.Update(id, func(r *record.Sandbox) error {
		r.State, r.Message = record.SandboxRemoving, why
		return nil
	})
	return errs.IgnoreNotFound(err)
}

// teardown undoes a sandbox, however far its creation came: with SandboxStopped until only
// its record, its files and its exited containers remain, with SandboxRemoving to the end. A
// failed step does not stop the next ones, except the release: it waits for all before it, so
// that a DEL that is repeated finds the namespace. The errors are joined; a step returns nil
// when its object is absent. The record is deleted last, once no step failed.
//
// It is the rollback of a failed start, StopPodSandbox, RemovePodSandbox and
// recovery in one, so it needs nothing but the record, and it does not end with
// the job's context: each step has its own time.
func (s *Sandboxes) teardown(ctx context.Context, j *job.Job, id string, to record.SandboxState) error {
	ctx = context.WithoutCancel(ctx)
	var failed []error
	step := func(stage, waitsFor string, undo func(context.Context) error) {
		j.Stage(stage, waitsFor)
		ctx, cancel := context.WithTimeout(ctx, s.limits.Step)
		defer cancel()
		err := undo(ctx)
		j.StageFailed(err)
		failed = append(failed, err)
	}
	step("end containers", "the jobs of its containers", func(ctx context.Context) error {
		return s.endContainers(ctx, id, to)
	})
	step("stop sandbox", "the engine", func(ctx context.Context) error {
		return s.call(ctx, id, "stop sandbox", s.engine.StopSandbox)
	})
	// The network is still there: plugins that configure networks undo what they did.
	step("report to plugins", "the NRI plugins", func(ctx context.Context) error {
		s.plugins.StopSandbox(ctx, id)
		return nil
	})
	step("detach network", "the network's plugins", func(ctx context.Context) error {
		return s.network.Detach(ctx, id)
	})
	if to == record.SandboxStopped && errors.Join(failed...) == nil {
		// Not before: a plugin whose DEL is retried still finds the namespace.
		step("release sandbox", "the engine", func(ctx context.Context) error {
			return s.call(ctx, id, "release sandbox", s.engine.ReleaseSandbox)
		})
	}
	if to == record.SandboxRemoving {
		step("remove sandbox", "the engine", func(ctx context.Context) error {
			return s.removeFromEngine(ctx, id)
		})
	}
	if err := errors.Join(failed...); err != nil || to != record.SandboxRemoving {
		return err
	}
	j.Stage("delete record", "the state directory")
	if err := s.plugins.RemoveSandbox(ctx, id, func() error { return s.records.Sandboxes.Delete(id) }); err != nil {
		return err
	}
	s.retries.Done(id)
	s.tombstones.Touch(id)
	return nil
}

// removeFromEngine removes what the engine has of a sandbox, and its files on disk: the engine has no record of the
// files of a sandbox from before a reboot.
func (s *Sandboxes) removeFromEngine(ctx context.Context, id string) error {
	if err := s.call(ctx, id, "remove sandbox", s.engine.RemoveSandbox); err != nil {
		return err
	}
	return s.call(ctx, id, "remove the sandbox's files", func(context.Context, string) error {
		return os.RemoveAll(s.records.SandboxDir(id))
	})
}

// endContainers stops or removes all containers of a sandbox, those that are
// being made included, each through the job of its own key.
func (s *Sandboxes) endContainers(ctx context.Context, sandboxID string, to record.SandboxState) error {
	var g errgroup.Group
	for _, rec := range s.records.Containers.InGroup(sandboxID) {
		g.Go(func() error {
			return errs.Guard("end of container "+rec.ID, func() error {
				switch {
				case to == record.SandboxRemoving || !rec.Visible():
					return s.containers.removeAndWait(ctx, rec)
				case rec.State == record.ContainerCreated:
					return s.containers.endCreated(ctx, rec)
				}
				return s.containers.stopAndWait(ctx, rec, 0)
			})
		})
	}
	return g.Wait()
}

// retrySandbox starts, after a pause, the teardown that the record asks for.
func (s *Sandboxes) retrySandbox(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	s.retries.Later(id, func() {
		rec, err := s.records.Sandboxes.Get(id)
		switch {
		case err != nil:
			s.retries.Done(id)
		case rec.State == record.SandboxStopping:
			s.startDetached(ctx, s.stopSandboxRequest(rec))
		default:
			s.startDetached(ctx, s.removeSandboxRequest(rec))
		}
	})
}

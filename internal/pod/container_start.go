package pod

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
)

// StartContainer starts a created container. When its program cannot be started
// the container is EXITED with code 128 and reason StartError.
func (s *Service) StartContainer(ctx context.Context, id string) error {
	rec, err := s.container(id)
	if err != nil {
		return fmt.Errorf("cannot start container: %w", err)
	}
	_, err = s.jobs.Do(ctx, &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindStart,
		Run: func(ctx context.Context, j *job.Job) (string, error) { return rec.ID, s.startContainer(ctx, j, rec.ID) },
	})
	return err
}

func (s *Service) startContainer(ctx context.Context, j *job.Job, id string) error {
	rec, err := s.containers.Get(id)
	if err != nil {
		return fmt.Errorf("cannot start container: %w", err)
	}
	if _, err := s.readySandbox(rec.SandboxID); err != nil {
		return fmt.Errorf("cannot start container %q: %w", id, err)
	}
	j.Stage("write record", "the state directory")
	if _, err := s.containers.Update(id, func(r *ContainerRecord) error {
		if r.State != ContainerCreated || r.Removing {
			return fmt.Errorf("cannot start container %q: it is %s, not created: %w", id, r.State, errs.State)
		}
		r.State, r.StartedAt = ContainerStarting, now()
		return nil
	}); err != nil {
		return err
	}
	if why := rec.startError(); why != "" {
		return s.failStart(ctx, j, id, fmt.Errorf("cannot start container %q: %s: %w", id, why, errs.Invalid))
	}
	j.Stage("start container", "the engine")
	pid, err := callFor(ctx, s.calls, id, "start container "+id, func(ctx context.Context) (int, error) {
		return s.opts.Engine.Start(ctx, id)
	})
	if err != nil {
		return s.failStart(ctx, j, id, err)
	}
	j.Stage("publish", "the state directory")
	if _, err := s.containers.Update(id, func(r *ContainerRecord) error {
		if r.State == ContainerStarting { // else its exit was told already
			r.State, r.Pid = ContainerRunning, pid
		}
		return nil
	}); err != nil {
		return s.failStart(ctx, j, id, err)
	}
	s.tombstones.touch(id)
	return nil
}

// failStart makes sure that nothing of the container runs and records why.
func (s *Service) failStart(ctx context.Context, j *job.Job, id string, cause error) error {
	if errors.Is(context.Cause(ctx), job.ErrShutdown) {
		return fmt.Errorf("%w: %w", job.ErrShutdown, cause) // the next start looks what became of it
	}
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = fmt.Errorf("%w: %w", context.Cause(ctx), cause)
	}
	ctx = context.WithoutCancel(ctx)
	j.Stage("kill what was started", "the engine")
	killErr := s.signal(ctx, id, syscall.SIGKILL, true)
	_, err := s.containers.Update(id, func(r *ContainerRecord) error {
		r.exit(time.Now(), engine.CodeStartError, engine.ReasonStartError, cause.Error())
		return nil
	})
	s.ends.tell(id)
	s.tombstones.touch(id)
	return errors.Join(cause, killErr, err)
}

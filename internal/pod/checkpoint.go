package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/podcheckpoint"
	"github.com/berthrun/berth/internal/pod/record"
)

// defaultCheckpointTimeout bounds a checkpoint whose request has no time limit.
const defaultCheckpointTimeout = 5 * time.Minute

// CheckpointContainer writes a running container into a new file at location, and lets the container go on.
// timeout is in seconds, 0 for the default. A stop or a removal of the container ends it.
func (c *Containers) CheckpointContainer(ctx context.Context, id, location string, timeout int64) error {
	rec, err := c.records.RunningContainer(id)
	if err != nil {
		return fmt.Errorf("cannot checkpoint container: %w", err)
	}
	checkpointer, can := c.engine.(engine.Checkpointer)
	if !can {
		return fmt.Errorf("cannot checkpoint container %q: its engine cannot: %w", rec.ID, errs.Unsupported)
	}
	_, err = c.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindCheckpoint,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			timeout := secondsOf(timeout)
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %v: %w", timeout, errs.Deadline))
			defer cancel()
			return rec.ID, c.checkpointContainer(ctx, j, checkpointer, rec.ID, location, nil)
		},
	})
	return err
}

// secondsOf returns the time limit of a request. One that a Duration cannot hold is the longest that it can.
func secondsOf(timeout int64) time.Duration {
	const longest = int64(24 * time.Hour / time.Second)
	if timeout == 0 {
		return defaultCheckpointTimeout
	}
	return time.Duration(min(timeout, longest)) * time.Second
}

// checkpointContainer writes one container. ctx has a deadline. See engine.CheckpointSpec for reached.
func (c *Containers) checkpointContainer(ctx context.Context, j *job.Job, checkpointer engine.Checkpointer, id, location string,
	reached func(context.Context, engine.CheckpointStage) error,
) error {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return fmt.Errorf("cannot checkpoint container: %w", err)
	}
	if rec.Removing || rec.State != record.ContainerRunning {
		return fmt.Errorf("cannot checkpoint container %q: it is %s: %w", id, rec.State, errs.State)
	}
	deadline, _ := ctx.Deadline()
	j.StageUntil("write checkpoint", "CRIU", deadline)
	if err := call.Run(ctx, c.calls, id, "checkpoint container "+id, func(ctx context.Context) error {
		return checkpointer.Checkpoint(ctx, &engine.CheckpointSpec{
			ContainerID: id, Location: location, Dir: filepath.Join(c.records.ContainerDir(id), "checkpoint"),
			Name:    rec.Config.Get().GetMetadata().GetName(),
			ImageID: rec.Image.ID, ImageRef: rec.Image.Ref, ImageName: rec.Image.Name,
			CreatedAt: time.Unix(0, rec.CreatedAt), Resources: rec.Resources.Get(), Reached: reached,
		})
	}); err != nil {
		return err
	}
	c.log.Info("container checkpointed", "container", id, "location", location, "took", j.Info().Age)
	return nil
}

// timeToAnswer is how long before the deadline of its request a checkpoint or a restore of a pod ends: CRIU needs some of it
// to undo its work.
const timeToAnswer = 5 * time.Second

// answerBy is when the work of a request ends that has to be undone before its answer; without a deadline after the default.
func answerBy(request context.Context) time.Time {
	deadline, has := request.Deadline()
	if !has {
		return time.Now().Add(defaultCheckpointTimeout)
	}
	return deadline.Add(-min(timeToAnswer, time.Until(deadline)/2))
}

// withDeadline ends ctx at a time, with a cause for people.
func withDeadline(ctx context.Context, at time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, at, fmt.Errorf("the deadline of the request is near: %w", errs.Deadline))
}

// alsoWith ends ctx when other ends, with its cause.
func alsoWith(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// CheckpointSandbox writes running containers of a READY sandbox into an empty directory, all as they are at one moment. No
// container is written before all are stopped, and none goes on before all are written. All go on before it returns, also
// after an error; then the directory is empty again. It ends in time for the deadline of ctx, and with ctx. A stop or a
// removal of the sandbox or of one of the containers ends it, too.
func (s *Sandboxes) CheckpointSandbox(ctx context.Context, id, dir string, containerIDs []string) error {
	rec, err := s.records.ReadySandbox(id)
	if err != nil {
		return fmt.Errorf("cannot checkpoint sandbox: %w", err)
	}
	containers, err := s.selected(rec.ID, containerIDs)
	if err != nil {
		return fmt.Errorf("cannot checkpoint sandbox %q: %w", rec.ID, err)
	}
	checkpointer, can := s.engine.(engine.Checkpointer)
	if !can {
		return fmt.Errorf("cannot checkpoint sandbox %q: its engine cannot: %w", rec.ID, errs.Unsupported)
	}
	request := ctx
	_, err = s.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindCheckpointPod,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			ctx, cancel := withDeadline(ctx, answerBy(request))
			defer cancel()
			ctx, leave := alsoWith(ctx, request)
			defer leave()
			if err := s.checkpointSandbox(ctx, j, checkpointer, rec.ID, dir, containers); err != nil {
				return "", fmt.Errorf("cannot checkpoint sandbox %q: %w", rec.ID, err)
			}
			return rec.ID, nil
		},
	})
	return err
}

// selected returns the running containers of a sandbox that a request names, each once.
func (s *Sandboxes) selected(sandboxID string, ids []string) ([]*record.Container, error) {
	var all []*record.Container
	seen := map[string]bool{}
	for i, id := range ids {
		rec, err := s.records.RunningContainer(id)
		switch {
		case err != nil:
			return nil, fmt.Errorf("container_ids[%d]: %w", i, err)
		case rec.SandboxID != sandboxID:
			return nil, fmt.Errorf("container_ids[%d]: container %q is in another sandbox: %w", i, rec.ID, errs.Invalid)
		case seen[rec.ID]:
			return nil, fmt.Errorf("container_ids[%d]: container %q is there twice: %w", i, rec.ID, errs.Invalid)
		case rec.Stop != nil || rec.Removing:
			return nil, fmt.Errorf("container_ids[%d]: container %q is being stopped: %w", i, rec.ID, errs.State)
		}
		seen[rec.ID] = true
		all = append(all, rec)
	}
	return all, nil
}

// checkpointSandbox writes the archives by a job of each container, and then what describes them.
func (s *Sandboxes) checkpointSandbox(ctx context.Context, j *job.Job, checkpointer engine.Checkpointer, id, dir string, containers []*record.Container) (err error) {
	rec, err := s.records.ReadySandbox(id)
	if err != nil {
		return err
	}
	j.Stage("look at directory", dir)
	if err := s.call(ctx, id, "use output_path", func(context.Context, string) error { return podcheckpoint.CheckEmpty(dir) }); err != nil {
		return err
	}
	written := make([]string, len(containers))
	defer func() {
		if err != nil {
			err = errors.Join(err, s.removeArchives(ctx, id, written))
		}
	}()
	meta := rec.Config.Get().GetMetadata()
	pod := &podcheckpoint.Pod{
		Sandbox: id, Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: meta.GetUid(), Handler: rec.Handler, CheckpointedAt: time.Now(),
	}
	deadline, _ := ctx.Deadline()
	j.StageUntil("write checkpoints", "the jobs of its containers", deadline)
	together, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	barrier := podcheckpoint.NewBarrier(len(containers))
	var g errgroup.Group
	for i, c := range containers {
		file := podcheckpoint.FileOf(i)
		pod.Containers = append(pod.Containers, podcheckpoint.Container{
			Name: c.Config.Get().GetMetadata().GetName(), ID: c.ID, File: file, Process: podcheckpoint.ProcessOf(c.Config.Get()),
		})
		g.Go(func() error {
			err := s.containers.checkpointPart(together, checkpointer, c, filepath.Join(dir, file), barrier)
			if err != nil {
				fail(err) // the others go on
				return err
			}
			written[i] = filepath.Join(dir, file)
			return nil
		})
	}
	if g.Wait() != nil {
		return context.Cause(together) // the first failure: the others follow from it
	}
	j.Stage("write description", dir)
	if err := s.call(ctx, id, "complete the checkpoint", func(context.Context, string) error { return pod.Write(dir) }); err != nil {
		return err
	}
	s.log.Info("sandbox checkpointed", "sandbox", id, "pod", rec.Name(), "containers", len(containers), "location", dir, "took", j.Info().Age)
	return nil
}

// removeArchives removes the archives that a checkpoint has written before it failed.
func (s *Sandboxes) removeArchives(ctx context.Context, id string, written []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.Step)
	defer cancel()
	return s.call(ctx, id, "remove the archives of a checkpoint that failed", func(context.Context, string) error {
		var all error
		for _, path := range written {
			if path != "" {
				all = errors.Join(all, errs.IgnoreNotExist(os.Remove(path)))
			}
		}
		return all
	})
}

// begun is the stage at which the jobs of all containers of a pod have begun. None is stopped before: another might wait for
// a job of its own.
const begun engine.CheckpointStage = "begun"

// checkpointPart writes one container of a pod, by a job of the container: a stop of the container ends it. It returns when
// the job has ended, or when ctx ends before the job begins.
func (c *Containers) checkpointPart(ctx context.Context, checkpointer engine.Checkpointer, rec *record.Container, location string, barrier *podcheckpoint.Barrier) error {
	began, result := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := c.jobs.Do(context.WithoutCancel(ctx), &job.Request{
			Key: rec.Name(), ID: rec.ID, Kind: kindCheckpoint,
			Run: func(own context.Context, j *job.Job) (string, error) {
				close(began)
				own, leave := alsoWith(own, ctx)
				defer leave()
				if deadline, has := ctx.Deadline(); has {
					var cancel context.CancelFunc
					own, cancel = withDeadline(own, deadline)
					defer cancel()
				}
				j.Stage("wait for the other containers", "their jobs before")
				if err := barrier.Reached(own, begun); err != nil {
					return "", fmt.Errorf("cannot checkpoint container %q: %w", rec.ID, err)
				}
				return rec.ID, c.checkpointContainer(own, j, checkpointer, rec.ID, location, barrier.Reached)
			},
		})
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case <-began:
		return <-result
	case err := <-result:
		return err
	default:
		return fmt.Errorf("cannot checkpoint container %q: another job of it has not ended: %w", rec.ID, context.Cause(ctx))
	}
}

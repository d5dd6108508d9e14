package pod

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
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
			return rec.ID, c.checkpointContainer(ctx, j, checkpointer, rec.ID, location, secondsOf(timeout))
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

func (c *Containers) checkpointContainer(ctx context.Context, j *job.Job, checkpointer engine.Checkpointer, id, location string, timeout time.Duration) error {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return fmt.Errorf("cannot checkpoint container: %w", err)
	}
	if rec.Removing || rec.State != record.ContainerRunning {
		return fmt.Errorf("cannot checkpoint container %q: it is %s: %w", id, rec.State, errs.State)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %v: %w", timeout, errs.Deadline))
	defer cancel()
	j.StageUntil("write checkpoint", "CRIU", time.Now().Add(timeout))
	if err := call.Run(ctx, c.calls, id, "checkpoint container "+id, func(ctx context.Context) error {
		return checkpointer.Checkpoint(ctx, &engine.CheckpointSpec{
			ContainerID: id, Location: location, Dir: filepath.Join(c.records.ContainerDir(id), "checkpoint"),
			Name:    rec.Config.Get().GetMetadata().GetName(),
			ImageID: rec.Image.ID, ImageRef: rec.Image.Ref, ImageName: rec.Image.Name,
			CreatedAt: time.Unix(0, rec.CreatedAt), Resources: rec.Resources.Get(),
		})
	}); err != nil {
		return fmt.Errorf("cannot checkpoint container %q: %w", id, err)
	}
	c.log.Info("container checkpointed", "container", id, "location", location, "took", j.Info().Age)
	return nil
}

// checkpointAnnotations returns those by which CRI-O, containerd and podman know an image that was made from the archive of
// a checkpoint.
func checkpointAnnotations() []string {
	return []string{
		"io.kubernetes.cri-o.annotations.checkpoint.name",
		"org.criu.checkpoint.container.name",
		"io.podman.annotations.checkpoint.name",
	}
}

// refuseCheckpoint refuses an image that has a checkpoint in it: other runtimes would restore it, and what its processes may
// do is in its files, and not in the request.
func refuseCheckpoint(img *image.Image) error {
	for _, name := range checkpointAnnotations() {
		if _, has := img.Annotations[name]; has {
			return fmt.Errorf("config.image.image: the image has a checkpoint in it (annotation %s), and checkpoints are not restored: %w", name, errs.Unsupported)
		}
	}
	return nil
}

// refuseArchive refuses a path of the host in the place of an image, by which other runtimes restore an archive.
func refuseArchive(name string) error {
	if filepath.IsAbs(name) {
		return fmt.Errorf("config.image.image: %q is a path, and checkpoints are not restored: %w", name, errs.Unsupported)
	}
	return nil
}

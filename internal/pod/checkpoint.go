package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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

// hasCheckpoint reports whether an image has a checkpoint in it.
func hasCheckpoint(img *image.Image) bool {
	return slices.ContainsFunc(checkpointAnnotations(), func(name string) bool { _, has := img.Annotations[name]; return has })
}

// restoreOf returns where the archive is whose processes a container continues, nil for one that runs a program: a file
// in the place of an image, or an image with a checkpoint in it; img is nil for a file. Kind Unsupported when
// such containers are not restored.
func (c *Containers) restoreOf(rec *record.Container, img *image.Image) (*engine.RestoreSpec, error) {
	name := rec.Config.Get().GetImage().GetImage()
	if img != nil && !hasCheckpoint(img) {
		return nil, nil //nolint:nilnil // most images have none
	}
	refuse := func(err error) error {
		if img != nil {
			return fmt.Errorf("config.image.image: the image has a checkpoint in it: %w", err)
		}
		return fmt.Errorf("config.image.image: %q is the path of a checkpoint: %w", name, err)
	}
	sb, err := c.records.ReadySandbox(rec.SandboxID)
	if err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	restorer, can := c.engine.(engine.Restorer)
	if !can {
		return nil, refuse(fmt.Errorf("its engine restores no checkpoints: %w", errs.Unsupported))
	}
	if err := restorer.CheckRestore(sb.Engine); err != nil {
		return nil, refuse(err)
	}
	spec := &engine.RestoreSpec{Sandbox: sb.Engine, SandboxSpec: c.records.SandboxSpec(sb), Dir: filepath.Join(c.records.ContainerDir(rec.ID), "restored")}
	if img != nil {
		spec.ImageID = img.ID
	} else {
		spec.Location = name
	}
	return spec, nil
}

// readCheckpoint reads an archive, and returns the image on which the container's root filesystem is based. It is that of
// the record from then on. The archive cannot choose what is not on the node.
func (c *Containers) readCheckpoint(ctx context.Context, j *job.Job, rec *record.Container, restore *engine.RestoreSpec) (*image.Image, error) {
	j.Stage("read checkpoint", "the archive")
	base, err := call.Get(ctx, c.calls, rec.ID, "read the checkpoint of container "+rec.ID, func(ctx context.Context) ([]string, error) {
		return c.engine.(engine.Restorer).ReadCheckpoint(ctx, restore)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot restore the checkpoint: %w", err)
	}
	var img *image.Image
	for _, ref := range base {
		img, err = call.Get(ctx, c.calls, rec.ID, "find base image", func(ctx context.Context) (*image.Image, error) {
			found, err := c.images.Get(ctx, ref)
			if err != nil {
				return nil, err
			}
			if err := refuseArtifact(found, ref); err != nil {
				return nil, err
			}
			return found, c.admit(ctx, rec, found, ref)
		})
		if err == nil {
			break
		}
	}
	switch {
	case errors.Is(err, errs.NotFound):
		return nil, fmt.Errorf("cannot restore the checkpoint: its base image %s is not on this node; pull it first: %w", base[0], errs.NotFound)
	case err != nil:
		return nil, fmt.Errorf("cannot restore the checkpoint: base image: %w", err)
	case hasCheckpoint(img):
		return nil, fmt.Errorf("cannot restore the checkpoint: its base image %s has a checkpoint in it: %w", base[0], errs.Invalid)
	}
	rec.Image = record.SnapshotOf(img)
	_, err = c.records.Containers.Update(rec.ID, func(r *record.Container) error {
		r.Image = rec.Image
		return nil
	})
	return img, err
}

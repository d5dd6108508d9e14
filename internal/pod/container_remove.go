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
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// RemoveContainer removes the container, and kills it first if it runs. Nil when there is
// none.
func (c *Containers) RemoveContainer(ctx context.Context, id string) error {
	full, err := c.records.ContainerID(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	rec, err := c.records.Containers.Get(full)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	return c.removeAndWait(ctx, rec)
}

func (c *Containers) removeAndWait(ctx context.Context, rec *record.Container) error {
	c.graces.end(rec.ID) // a stop need not wait until the end of its grace period
	_, err := c.jobs.Do(ctx, c.removeContainerRequest(rec))
	return err
}

func (c *Containers) removeContainerRequest(rec *record.Container) *job.Request {
	return &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindRemove,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			return rec.ID, c.removeContainer(ctx, j, rec.ID)
		},
	}
}

func (c *Containers) removeContainer(ctx context.Context, j *job.Job, id string) error {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if rec.Visible() && !rec.Removing {
		j.Stage("write record", "the state directory")
		if _, err := c.records.Containers.Update(id, func(r *record.Container) error {
			r.Removing = true
			return nil
		}); err != nil {
			return fmt.Errorf("cannot remove container %q: %w", id, err)
		}
	}
	if err := c.teardownContainer(ctx, j, id); err != nil {
		c.retryContainer(ctx, id)
		return fmt.Errorf("cannot remove container %q: %w", id, err)
	}
	return nil
}

// teardownContainer is teardown for one container.
func (c *Containers) teardownContainer(ctx context.Context, j *job.Job, id string) error {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	ctx = context.WithoutCancel(ctx)
	var killErr error
	if rec.Alive() {
		killErr = c.kill(ctx, j, id)
	}
	j.Stage("remove container", "the engine")
	removing, cancel := context.WithTimeout(ctx, c.limits.Step)
	defer cancel()
	if err := c.call(removing, id, "remove container "+id, c.engine.Remove); err != nil {
		return errors.Join(killErr, err)
	}
	if killErr != nil {
		// Remove has killed the processes: there is no failure left to report.
		c.log.Warn("cannot stop a container; it was removed", "container", id, "error", killErr)
	}
	if rec.State == record.ContainerCreating {
		// No client knows the log, and an init that failed may have written to it.
		if err := c.call(removing, id, "remove the log of a half-made container", func(context.Context, string) error {
			return removeLog(rec)
		}); err != nil {
			return err
		}
	}
	if err := c.call(removing, id, "remove the files of a checkpoint", func(context.Context, string) error {
		return os.RemoveAll(c.records.ContainerDir(id))
	}); err != nil {
		return err
	}
	j.Stage("delete record", "the state directory")
	if err := c.plugins.RemoveContainer(ctx, rec, func() error { return c.records.Containers.Delete(id) }); err != nil {
		return err
	}
	c.exits.Notify(id)
	c.retries.Done(id)
	c.tombstones.Touch(id)
	return nil
}

// removeLog removes the log that was created for this container. It keeps a log that is older
// than the container, and follows no link in its path.
func removeLog(rec *record.Container) error {
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
	return sysproc.RemoveCreatedSince(dir, path, time.Unix(0, rec.CreatedAt))
}

func (c *Containers) retryContainer(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	c.retries.Later(id, func() {
		rec, err := c.records.Containers.Get(id)
		if err != nil {
			c.retries.Done(id)
			return
		}
		c.startDetached(ctx, c.removeContainerRequest(rec))
	})
}

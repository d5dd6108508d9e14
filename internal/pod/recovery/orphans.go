package recovery

import (
	"context"
	"errors"
	"os"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/call"
	"golang.org/x/sync/errgroup"
)

// clean removes orphans: tombstones whose removal was not written, objects of the engine, files and
// attachments without a record, and orphans that the network itself finds.
func (r *recovery) clean(ctx context.Context, actual []engine.Actual) {
	r.Tombstones.Reconcile()
	r.removeOrphans(ctx, actual, engine.KindContainer)
	r.removeOrphans(ctx, actual, engine.KindSandbox)
	r.removeFiles(ctx)
	attached, err := r.Attachments.IDs()
	if err != nil {
		r.Log.Error("cannot read which sandboxes are attached to their network; what has no record is not detached", "error", err)
		return
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, id := range attached {
		if _, err := r.Records.Sandboxes.Get(id); err == nil {
			continue // its own teardown detaches it
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, r.Step)
			defer cancel()
			removed := r.leak(attachmentKind)
			err := errs.Guard("detachment of sandbox "+id, func() error { return r.Attachments.Detach(ctx, id) })
			removed(err)
			if err != nil {
				r.Log.Error("cannot detach a sandbox of an earlier run", "sandbox", id, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // each has reported its own error
	r.Attachments.CollectGarbage(ctx)
}

func (r *recovery) removeOrphans(ctx context.Context, actual []engine.Actual, kind engine.Kind) {
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, a := range actual {
		if a.Kind != kind || r.hasRecord(a) {
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, r.Step)
			defer cancel()
			r.Log.Warn("removing an orphan, which has no record", "kind", a.Kind, "id", a.ID, "state", a.State)
			removed := r.leak(string(a.Kind))
			remove := r.Engine.Remove
			if kind == engine.KindSandbox {
				remove = r.Engine.RemoveSandbox
			}
			err := call.Run(ctx, r.Calls, a.ID, "remove what has no record", func(ctx context.Context) error {
				return remove(ctx, a.ID)
			})
			removed(err)
			if err != nil {
				r.Log.Error("cannot remove an orphan, which has no record", "kind", a.Kind, "id", a.ID, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // each has reported its own error
}

// removeFiles removes the files on disk of sandboxes and containers that have no record: of what was being made when the
// power went, and of what an earlier berth removed after a reboot.
func (r *recovery) removeFiles(ctx context.Context) {
	unowned, err := r.Records.UnownedFiles()
	if err != nil {
		r.Log.Error("cannot find files without a record", "error", err)
		return
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for id, dirs := range unowned {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, r.Step)
			defer cancel()
			r.Log.Info("removing files of a sandbox or container that has no record", "dirs", dirs)
			removed := r.leak(filesKind)
			err := call.Run(ctx, r.Calls, id, "remove files that have no record", func(context.Context) (err error) {
				for _, dir := range dirs {
					err = errors.Join(err, os.RemoveAll(dir))
				}
				return err
			})
			removed(err)
			if err != nil {
				r.Log.Error("cannot remove files that have no record; the next start tries again", "dirs", dirs, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // each has reported its own error
}

func (r *recovery) hasRecord(a engine.Actual) bool {
	var err error
	if a.Kind == engine.KindSandbox {
		_, err = r.Records.Sandboxes.Get(a.ID)
	} else {
		_, err = r.Records.Containers.Get(a.ID)
	}
	return err == nil
}

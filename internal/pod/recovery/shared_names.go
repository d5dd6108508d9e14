package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
)

// sharedNameGrace is how long a running container may take to stop when another container
// keeps its name.
const sharedNameGrace = 10 * time.Second

// stopSharedNames stops sandboxes and containers whose name another one keeps. Each stays
// until it is removed by its id.
//
// Berth itself never makes two records of one name. A state directory that was restored or
// copied by hand can have them, and so can tombstones of which the machine lost the last batch.
func (r *recovery) stopSharedNames(ctx context.Context) {
	for _, ids := range r.Records.Sandboxes.Shared() {
		for _, id := range ids[1:] {
			errs.Protect("end of sandbox "+id, func() { r.stopSharedSandbox(ctx, id, ids[0]) })
		}
	}
	for _, ids := range r.Records.Containers.Shared() {
		for _, id := range ids[1:] {
			errs.Protect("end of container "+id, func() { r.stopSharedContainer(ctx, id, ids[0]) })
		}
	}
}

func (r *recovery) stopSharedSandbox(ctx context.Context, id, keeps string) {
	rec, err := r.Records.Sandboxes.Get(id)
	if err != nil || rec.Rank() == 0 {
		return // it is being removed
	}
	if rec.State == record.SandboxReady { // else an earlier start has stopped it
		r.Log.Warn("two sandboxes have one name; stopping one of them",
			"pod", rec.Name(), "keeps", keeps, "stopped", id)
	}
	next, err := r.Records.Sandboxes.Update(id, func(sb *record.Sandbox) error {
		if sb.State != record.SandboxReady {
			return record.ErrUnchanged
		}
		sb.State, sb.Message = record.SandboxStopping, fmt.Sprintf("sandbox %s has the same name", keeps)
		return nil
	})
	switch {
	case err == nil:
		r.Jobs.StopSandbox(ctx, next)
	case !errors.Is(err, record.ErrUnchanged) && !errors.Is(err, errs.NotFound):
		r.Log.Error("cannot stop a sandbox with the name of another one",
			"sandbox", id, "error", err)
	}
}

func (r *recovery) stopSharedContainer(ctx context.Context, id, keeps string) {
	rec, err := r.Records.Containers.Get(id)
	if err != nil || rec.Rank() == 0 {
		return // it is being removed
	}
	if rec.State == record.ContainerExited {
		return // an earlier start has stopped it
	}
	r.Log.Warn("two containers have one name; stopping one of them",
		"name", rec.Name(), "keeps", keeps, "stopped", id)
	if rec.Alive() {
		r.Jobs.StopContainer(ctx, rec, sharedNameGrace)
		return
	}
	r.Jobs.RemoveContainer(ctx, rec) // it was created, and has run nothing that could be asked for
}

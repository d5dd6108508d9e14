package pod

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/plugins"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/pod/retry"
)

// worker is what the jobs of sandboxes and those of containers work with.
type worker struct {
	engine     engine.Engine
	records    *record.Store
	tombstones *record.Tombstones
	jobs       *job.Table
	// calls has one call to a backend at a time for each object.
	calls   *keyed.Calls
	retries *retry.Timers
	plugins *plugins.Plugins
	// ended reports a container whose exit this process has recorded.
	ended  func(*record.Container)
	limits Limits
	bootID string
	log    *slog.Logger
}

// call is call.Run for methods of the engine that take an id.
func (w *worker) call(ctx context.Context, id, what string, fn func(context.Context, string) error) error {
	return call.Run(ctx, w.calls, id, what, func(ctx context.Context) error { return fn(ctx, id) })
}

// recordStartError records that a container cannot be started. change, which may be nil, changes its record as well.
func (w *worker) recordStartError(id, message string, change func(*record.Container)) error {
	first := false
	rec, err := w.records.Containers.Update(id, func(r *record.Container) error {
		first = r.State != record.ContainerExited
		if change != nil {
			change(r)
		}
		r.SetExited(time.Now(), engine.CodeStartError, engine.ReasonStartError, message)
		return nil
	})
	if err == nil && first { // otherwise the engine has reported the exit of what was started
		w.ended(rec)
	}
	return err
}

// startDetached starts a job without waiters.
func (w *worker) startDetached(ctx context.Context, req *job.Request) {
	if _, err := w.jobs.Enter(ctx, req); err != nil {
		// Only a closed table refuses; the intent is in the record.
		w.log.Debug("a job is left to the next start", "job", req.Kind, "key", req.Key, "error", err)
	}
}

// detached starts jobs without waiters; see recovery.Jobs.
type detached struct {
	sandboxes  *Sandboxes
	containers *Containers
	// resumed says that the recovery starts them.
	resumed bool
}

func (d detached) start(ctx context.Context, req *job.Request) {
	req.Resumed = d.resumed
	d.sandboxes.startDetached(ctx, req)
}

// StopSandbox implements recovery.Jobs.
func (d detached) StopSandbox(ctx context.Context, rec *record.Sandbox) {
	d.start(ctx, d.sandboxes.stopSandboxRequest(rec))
}

// RemoveSandbox implements recovery.Jobs.
func (d detached) RemoveSandbox(ctx context.Context, rec *record.Sandbox) {
	d.start(ctx, d.sandboxes.removeSandboxRequest(rec))
}

// StopContainer implements recovery.Jobs.
func (d detached) StopContainer(ctx context.Context, rec *record.Container, left time.Duration) {
	d.start(ctx, d.containers.stopContainerRequest(rec, left))
}

// RemoveContainer implements recovery.Jobs.
func (d detached) RemoveContainer(ctx context.Context, rec *record.Container) {
	d.start(ctx, d.containers.removeContainerRequest(rec))
}

// resumed counts the jobs that the recovery starts. The observer may be nil.
type resumed struct {
	detached
	observer Observer
}

func (r resumed) count(kind job.Kind) {
	if r.observer != nil {
		r.observer.JobResumed(string(kind))
	}
}

// StopSandbox implements recovery.Jobs.
func (r resumed) StopSandbox(ctx context.Context, rec *record.Sandbox) {
	r.count(kindStop)
	r.detached.StopSandbox(ctx, rec)
}

// RemoveSandbox implements recovery.Jobs.
func (r resumed) RemoveSandbox(ctx context.Context, rec *record.Sandbox) {
	r.count(kindRemove)
	r.detached.RemoveSandbox(ctx, rec)
}

// StopContainer implements recovery.Jobs.
func (r resumed) StopContainer(ctx context.Context, rec *record.Container, left time.Duration) {
	r.count(kindStop)
	r.detached.StopContainer(ctx, rec, left)
}

// RemoveContainer implements recovery.Jobs.
func (r resumed) RemoveContainer(ctx context.Context, rec *record.Container) {
	r.count(kindRemove)
	r.detached.RemoveContainer(ctx, rec)
}

// newID returns 64 lower-case hex digits.
func newID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails: the program ends instead
	return hex.EncodeToString(b[:])
}

// now is the time as records have it, and never 0, which means "not yet".
func now() int64 { return max(time.Now().UnixNano(), 1) }

// Package exits records the exits of containers and of sandboxes' own processes, and lets
// goroutines wait for them.
//
// It changes records by the first exit that is reported, and starts no job itself: the end
// of a sandbox is handed to the rules.
package exits

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/pod/retry"
)

// Pauses before an exit that could not be recorded is recorded again.
const (
	exitRetryMin = 100 * time.Millisecond
	exitRetryMax = 5 * time.Second
)

// The reasons of an exit that has a code, as the kubelet and people know them. Those of
// other exits are the engine's.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
	reasonOOMKilled = "OOMKilled"
)

// Options configure a Recorder.
type Options struct {
	Records    *record.Store
	Tombstones *record.Tombstones
	Log        *slog.Logger
	// SandboxEnded is called with a sandbox whose own process has ended, once its record
	// says that it is stopping. It must not block.
	SandboxEnded func(*record.Sandbox)
	// ContainerEnded is called with a container whose exit is recorded. It must not block.
	ContainerEnded func(*record.Container)
}

// Recorder writes exits into records. All methods are safe for concurrent use.
type Recorder struct {
	records      *record.Store
	tombstones   *record.Tombstones
	waiters      *waiters
	retries      *retry.Timers
	log          *slog.Logger
	sandboxEnded func(*record.Sandbox)

	containerEnded func(*record.Container)
}

// New returns a Recorder.
func New(opts Options) *Recorder {
	return &Recorder{
		records: opts.Records, tombstones: opts.Tombstones, log: opts.Log, sandboxEnded: opts.SandboxEnded,
		containerEnded: opts.ContainerEnded,
		waiters:        newWaiters(), retries: retry.New(exitRetryMin, exitRetryMax),
	}
}

// Close ends the retries of exits that could not be recorded. The next start finds them.
func (r *Recorder) Close() { r.retries.Close() }

// Next returns a channel that is closed by the next Notify of the id. Take it before the
// record is read, so that no exit is missed between.
func (r *Recorder) Next(id string) <-chan struct{} { return r.waiters.next(id) }

// Notify wakes the goroutines that wait for the container: its record says now that it has
// ended, or there is no record any more.
func (r *Recorder) Notify(id string) { r.waiters.notify(id) }

// Record writes the first exit of a container into its record. It never
// blocks for long: there is one listener for all containers.
func (r *Recorder) Record(exit *engine.Exit) {
	id := exit.ContainerID
	if _, err := r.records.Sandboxes.Get(id); err == nil {
		r.recordSandboxExit(id, exit)
		return
	}
	recorded := false
	rec, err := r.records.Containers.Update(id, func(c *record.Container) error {
		if c.State == record.ContainerExited || c.State == record.ContainerCreating {
			return record.ErrUnchanged // reported twice, or of an unfinished container in its teardown
		}
		reason, message := ReasonOf(exit)
		c.SetExited(exit.At, exit.Code, reason, message)
		recorded = true
		return nil
	})
	switch {
	case recorded && err == nil:
		r.waiters.notify(id)
		r.tombstones.Touch(id)
		r.containerEnded(rec)
		r.log.Info("container exited", "container", id, "sandbox", rec.SandboxID, "code", rec.ExitCode, "reason", rec.Reason)
	case recorded:
		r.log.Error("cannot record an exit; retrying",
			"container", id, "code", exit.Code, "error", err)
		again := *exit
		r.retries.Later(id, func() { r.Record(&again) })
		return
	}
	r.retries.Done(id)
}

// ReasonOf returns the reason and the message that a record has of an exit.
func ReasonOf(exit *engine.Exit) (reason, message string) {
	switch {
	case exit.Reason != "":
		return exit.Reason, exit.Message
	case exit.OOMKilled:
		return reasonOOMKilled, exit.Message
	case exit.Code == 0:
		return reasonCompleted, exit.Message
	default:
		return reasonError, exit.Message
	}
}

// recordSandboxExit handles the end of a sandbox's own process, which takes the
// containers that share its PID namespace with it.
func (r *Recorder) recordSandboxExit(id string, exit *engine.Exit) {
	recorded, died := false, false
	rec, err := r.records.Sandboxes.Update(id, func(sb *record.Sandbox) error {
		why := fmt.Sprintf("its own process ended with code %d", exit.Code)
		if exit.Message != "" {
			why += ": " + exit.Message
		}
		switch sb.State {
		case record.SandboxReady:
			sb.State, sb.Message = record.SandboxStopping, why
			recorded, died = true, true
			return nil
		case record.SandboxCreating, record.SandboxRestoring:
			sb.Message = why // the job that makes it fails
			recorded = true
			return nil
		case record.SandboxStopping, record.SandboxStopped, record.SandboxRemoving:
		}
		return record.ErrUnchanged // its stop was requested
	})
	if recorded && err != nil {
		r.log.Error("cannot record the end of a sandbox; retrying", "sandbox", id, "error", err)
		again := *exit
		r.retries.Later(id, func() { r.Record(&again) })
		return
	}
	r.retries.Done(id)
	if !died {
		return
	}
	r.log.Error("sandbox is no longer ready",
		"sandbox", id, "pod", rec.Name(), "reason", rec.Message)
	r.sandboxEnded(rec)
}

// Wait waits until the record says that the container has ended, or ctx ends.
func (r *Recorder) Wait(ctx context.Context, id string) error {
	for {
		ch := r.waiters.next(id)
		rec, err := r.records.Containers.Get(id)
		if err != nil || !rec.Alive() {
			r.waiters.notify(id)
			return errs.IgnoreNotFound(err)
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// RecordUnknown records the exit of a dead container whose exit was not reported: its code
// is unknown, and why is its message.
func (r *Recorder) RecordUnknown(id, why string) {
	r.Record(&engine.Exit{ContainerID: id, Code: engine.CodeUnknown, At: time.Now(), Reason: engine.ReasonUnknown, Message: why})
}

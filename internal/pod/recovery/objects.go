package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/record"
)

// The times when an object can be lost without an exit that berth hears of.
const (
	whileDown = "berth did not run"
	whileAway = "the engine was away"
)

// recoverSandbox resumes or undoes what the record says was under way. when is whileDown or whileAway.
func (r *recovery) recoverSandbox(ctx context.Context, rec *record.Sandbox, actual engine.Actual, when string) {
	switch rec.State {
	case record.SandboxCreating, record.SandboxRestoring, record.SandboxRemoving:
		r.Jobs.RemoveSandbox(ctx, rec)
	case record.SandboxStopping:
		r.Jobs.StopSandbox(ctx, rec)
	case record.SandboxReady:
		why := endingOfSandbox(actual, when)
		switch {
		case rec.Engine != nil && replaced(rec.Engine.Pid, actual):
			why = "another program restarted its own process"
		case actual.State != engine.StateGone && actual.State != engine.StateBroken && actual.State != engine.StateStopped:
			return
		}
		next, err := r.Records.Sandboxes.Update(rec.ID, func(sb *record.Sandbox) error {
			if sb.State != record.SandboxReady {
				return record.ErrUnchanged
			}
			sb.State, sb.Message = record.SandboxStopping, why
			return nil
		})
		if err != nil {
			if !errors.Is(err, record.ErrUnchanged) && !errors.Is(err, errs.NotFound) {
				r.Log.Error("cannot record that a sandbox was lost", "sandbox", rec.ID, "error", err)
			}
			return
		}
		r.Log.Error("sandbox is no longer ready",
			"sandbox", rec.ID, "pod", rec.Name(), "reason", why)
		r.Jobs.StopSandbox(ctx, next)
	case record.SandboxStopped:
		if rec.HoldsNamespaces(r.Engine) { // an older berth stopped it
			r.Jobs.StopSandbox(ctx, rec)
		}
	}
}

// recoverContainer updates one record to the state in the engine.
func (r *recovery) recoverContainer(ctx context.Context, rec *record.Container, actual engine.Actual) {
	if rec.State == record.ContainerCreating || rec.Removing {
		r.Jobs.RemoveContainer(ctx, rec)
		return
	}
	switch rec.State {
	case record.ContainerStarting, record.ContainerRunning:
		if why := rec.StartError(); why != "" {
			// An earlier daemon ended before it recorded that. The engine reports no exit.
			r.Exits.Record(&engine.Exit{
				ContainerID: rec.ID, Code: engine.CodeStartError, At: time.Now(), Reason: engine.ReasonStartError,
				Message: fmt.Sprintf("cannot start container %q: %s", rec.ID, why),
			})
			return
		}
		r.recoverStarted(ctx, rec, actual)
	case record.ContainerCreated:
		if actual.State != engine.StateCreated && actual.State != engine.StateUnknown && rec.StartError() == "" {
			r.settle(ctx, rec.ID, actual, "it was lost before it was started, while "+whileDown)
		}
	case record.ContainerExited:
		if actual.State == engine.StateRunning {
			r.endRestarted(ctx, rec.ID)
		}
	case record.ContainerCreating:
	}
}

func (r *recovery) recoverStarted(ctx context.Context, rec *record.Container, actual engine.Actual) {
	switch actual.State {
	case engine.StateRunning:
		if rec.State == record.ContainerRunning && replaced(rec.Pid, actual) {
			r.recordRestarted(ctx, rec.ID)
			return
		}
		r.adopt(rec.ID, record.ContainerRunning, actual.Pid)
	case engine.StateCreated:
		if rec.State == record.ContainerStarting {
			r.adopt(rec.ID, record.ContainerCreated, 0)
		}
	case engine.StateUnknown: // recheck reads it again
		if rec.State == record.ContainerStarting {
			r.starts.Store(rec.ID, nil)
			r.recordUndecided(rec.ID)
		}
	default:
		r.settle(ctx, rec.ID, actual, ending(actual, whileDown))
		return
	}
	if rec.Stop != nil {
		r.Jobs.StopContainer(ctx, rec, rec.Stop.Left())
	}
}

// recheck finds lost objects after the connection to the engine was lost.
func (r *recovery) recheck(ctx context.Context) { r.recheckThose(ctx, nil) }

// recheckThose finds which of the objects with the ids are lost; nil is all. It looks until the engine has
// reported their states. A later call takes the place of this one.
func (r *recovery) recheckThose(ctx context.Context, ids map[string]bool) {
	looking, end := context.WithCancel(ctx)
	defer end()
	if before := r.endRecheck.Swap(&end); before != nil {
		(*before)()
	}
	repeat(looking, func() (done bool) {
		containers, sandboxes := r.Records.Containers.All(), r.Records.Sandboxes.All()
		actual, err := r.Engine.List(looking)
		if err != nil {
			if looking.Err() == nil {
				r.Log.Error("cannot list the engine's objects; retrying", "error", err)
			}
			return false
		}
		others := func(id string) bool { return ids != nil && !ids[id] }
		containers = slices.DeleteFunc(containers, func(c *record.Container) bool { return others(c.ID) })
		sandboxes = slices.DeleteFunc(sandboxes, func(sb *record.Sandbox) bool { return others(sb.ID) })
		found := byID(actual)
		r.compare(ctx, containers, sandboxes, found)
		ids = unknownOf(containers, sandboxes, found)
		return len(ids) == 0
	})
}

// unknownOf returns the ids of the records of whose objects the engine did not report the state.
func unknownOf(containers []*record.Container, sandboxes []*record.Sandbox, found map[string]engine.Actual) map[string]bool {
	ids := map[string]bool{}
	for _, rec := range containers {
		if found[rec.ID].State == engine.StateUnknown {
			ids[rec.ID] = true
		}
	}
	for _, rec := range sandboxes {
		if found[rec.ID].State == engine.StateUnknown {
			ids[rec.ID] = true
		}
	}
	return ids
}

// compare finds lost objects. It skips objects that a job works on. The records were read before
// the engine listed its objects, so that all objects of the records existed before the list.
func (r *recovery) compare(ctx context.Context, containers []*record.Container, sandboxes []*record.Sandbox, found map[string]engine.Actual) {
	for _, rec := range containers {
		switch state := found[rec.ID].State; {
		case state == engine.StateUnknown:
		case rec.State == record.ContainerStarting:
			// No job starts it, if an earlier berth began its start.
			if _, former := r.starts.LoadAndDelete(rec.ID); former {
				r.recoverStarted(ctx, rec, found[rec.ID])
			}
		case rec.State == record.ContainerRunning && replaced(rec.Pid, found[rec.ID]):
			r.recordRestarted(ctx, rec.ID)
		case rec.State == record.ContainerExited && state == engine.StateRunning:
			r.endRestarted(ctx, rec.ID)
		case rec.State == record.ContainerRunning && state != engine.StateRunning:
			r.settleLater(ctx, rec.ID, ending(found[rec.ID], whileAway))
		case rec.State == record.ContainerCreated && rec.StartError() == "" && state != engine.StateCreated && state != engine.StateRunning:
			r.settleLater(ctx, rec.ID, "it was lost before it was started, while "+whileAway)
		}
	}
	for _, rec := range sandboxes {
		if rec.State == record.SandboxReady {
			r.recoverSandbox(ctx, rec, found[rec.ID], whileAway)
		}
	}
}

// ending is the message of an exit that nobody reported. when says why not.
func ending(actual engine.Actual, when string) string {
	if actual.State == engine.StateGone {
		return "the engine has no such container any more: another program removed it, or the engine lost it, while " + when +
			"; its exit code is unknown"
	}
	return "it ended while " + when + ", and its exit code is unknown"
}

// endingOfSandbox is why a sandbox is no longer ready whose end nobody reported.
func endingOfSandbox(actual engine.Actual, when string) string {
	switch actual.State {
	case engine.StateGone:
		return "the engine has no such sandbox any more: another program removed it, or the engine lost it, while " + when
	case engine.StateBroken:
		return "a part of it was lost while " + when
	}
	return "its own process ended while " + when
}

// replaced reports whether another process runs than the recorded one: another program has
// restarted it. Nothing is known of a process that had ended before it was seen.
func replaced(pid int, actual engine.Actual) bool {
	known := pid != 0 && pid != engine.PidEnded && actual.Pid != 0
	return known && actual.State == engine.StateRunning && actual.Pid != pid
}

// recordRestarted records the end of a container whose process was replaced, and ends the new one.
func (r *recovery) recordRestarted(ctx context.Context, id string) {
	r.Exits.Record(&engine.Exit{
		ContainerID: id, Code: engine.CodeUnknown, At: time.Now(), Reason: engine.ReasonRestarted,
		Message: "another program restarted the container while berth could not see it; berth ended it, and its first exit code is unknown",
	})
	r.endRestarted(ctx, id)
}

// endRestarted kills the processes of a container that has exited by its record: a kubelet may run
// its successor. It tries until the engine has killed them or has no such processes.
func (r *recovery) endRestarted(ctx context.Context, id string) {
	r.Log.Warn("a container that has exited runs again; ending it", "container", id)
	r.Background.Go(func() {
		repeat(ctx, func() (done bool) {
			err := r.kill(ctx, id)
			if errs.IgnoreNotFound(err) == nil || ctx.Err() != nil {
				return true
			}
			r.Log.Error("cannot end a container that has exited and runs again; retrying", "container", id, "error", err)
			return false
		})
	})
}

// Pauses of repeat.
const (
	pauseMin = time.Second
	pauseMax = 30 * time.Second
)

// repeat calls do until it is done or ctx ends, with growing pauses.
func repeat(ctx context.Context, do func() (done bool)) {
	for pause := pauseMin; !do(); pause = min(2*pause, pauseMax) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// kill sends SIGKILL to all processes of a container.
func (r *recovery) kill(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, r.Step)
	defer cancel()
	return call.Run(ctx, r.Calls, id, "end what runs again", func(ctx context.Context) error {
		return r.Engine.Signal(ctx, id, syscall.SIGKILL, true)
	})
}

// adopt records the state in which a container was found, unless its exit was recorded
// meanwhile. pid is 0 if the process is not known.
func (r *recovery) adopt(id string, state record.ContainerState, pid int) {
	_, err := r.Records.Containers.Update(id, func(c *record.Container) error {
		if pid == 0 {
			pid = c.Pid
		}
		if !c.Alive() || c.State == state && c.Pid == pid {
			return record.ErrUnchanged
		}
		c.State, c.Undecided, c.Pid = state, false, pid
		return nil
	})
	switch {
	case err == nil:
		r.Tombstones.Touch(id)
	case !errors.Is(err, record.ErrUnchanged) && !errors.Is(err, errs.NotFound):
		r.Log.Error("cannot record the state of a container", "container", id, "state", state, "error", err)
	}
}

// recordUndecided records that nobody knows yet whether a start of an earlier berth has started a container.
func (r *recovery) recordUndecided(id string) {
	_, err := r.Records.Containers.Update(id, func(c *record.Container) error {
		if c.State != record.ContainerStarting || c.Undecided {
			return record.ErrUnchanged
		}
		c.Undecided = true
		return nil
	})
	if err != nil && !errors.Is(err, record.ErrUnchanged) && !errors.Is(err, errs.NotFound) {
		r.Log.Error("cannot record the state of a container", "container", id, "state", "undecided", "error", err)
	}
}

// settle records the unknown exit of a container that was found without its process when berth started:
// at once if the engine does not have it, and so reports no exit of it.
func (r *recovery) settle(ctx context.Context, id string, actual engine.Actual, why string) {
	if actual.State == engine.StateGone {
		r.Exits.RecordUnknown(id, why)
		return
	}
	r.settleLater(ctx, id, why)
}

// settleLater records an unknown exit, unless the engine reports the missed exit in time.
func (r *recovery) settleLater(ctx context.Context, id, why string) {
	r.Background.Go(func() {
		timeout := time.After(r.Settle)
		for {
			exit := r.Exits.Next(id)
			if rec, err := r.Records.Containers.Get(id); err != nil || rec.State == record.ContainerExited {
				r.Exits.Notify(id)
				return
			}
			select {
			case <-exit:
			case <-timeout:
				errs.Protect("settlement of container "+id, func() { r.Exits.RecordUnknown(id, why) })
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

// Package endings reads how containers of a Docker Engine have ended, from their states and from
// the events of the engine.
package endings

import (
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"

	"github.com/berthrun/berth/internal/engine"
)

// The messages of exits that another program has caused. The kubelet shows them.
const (
	removedMessage   = "another program removed the container from the Docker engine"
	restartedMessage = "another program restarted the container in the Docker engine; berth ended it, as a container of a pod runs once"
)

// Die is the engine's event of the end of a container's process.
type Die struct {
	Code int32
	At   time.Time
}

// DieOf reads an event, nil when it has no exit code.
func DieOf(message *events.Message) *Die {
	code, err := strconv.ParseInt(message.Actor.Attributes["exitCode"], 10, 32)
	if err != nil {
		return nil
	}
	return &Die{Code: int32(code), At: time.Unix(0, message.TimeNano)}
}

// Removed is the exit of a container that another program has removed. die is nil when its event
// was not seen: the code is unknown then.
func Removed(id string, die *Die) engine.Exit {
	if die == nil {
		return engine.Exit{
			ContainerID: id, Code: engine.CodeUnknown, At: time.Now(), Reason: engine.ReasonRemoved,
			Message: removedMessage + "; its exit code is unknown",
		}
	}
	return engine.Exit{ContainerID: id, Code: die.Code, At: die.At, Reason: engine.ReasonRemoved, Message: removedMessage}
}

// Restarted reports whether a container runs again after an end.
func Restarted(s *container.State, die *Die) bool {
	if die == nil || !s.Running {
		return false
	}
	started, err := time.Parse(time.RFC3339Nano, s.StartedAt)
	return err == nil && started.After(die.At)
}

// Known is what is known of an end besides the engine's state of the container.
type Known struct {
	// Die is the engine's event of the end, nil when it was not seen.
	Die *Die
	// Kernel is the exit code that the kernel has of the process, nil when it has none.
	Kernel *int32
	// EngineStarted is when the engine was started the last time, zero if that is not known.
	EngineStarted time.Time
}

// Of reads the exit of a container that was started. ended is false while it runs, or when the state
// alone does not say how it ended.
func Of(id string, s *container.State, known Known) (exit engine.Exit, ended bool) {
	die := known.Die
	switch s.Status {
	case container.StateRemoving:
		if die == nil {
			return exit, false // the event of its removal follows
		}
		return Removed(id, die), true
	case container.StateExited, container.StateDead:
		return ofStopped(id, s, known), true
	case container.StateCreated, container.StateRunning, container.StatePaused, container.StateRestarting:
	}
	if Restarted(s, die) {
		return restarted(id, die), true
	}
	return exit, false
}

func restarted(id string, die *Die) engine.Exit {
	return engine.Exit{ContainerID: id, Code: die.Code, At: die.At, Reason: engine.ReasonRestarted, Message: restartedMessage}
}

// ofStopped reads the state of a container that does not run.
func ofStopped(id string, s *container.State, known Known) engine.Exit {
	die := known.Die
	at, err := time.Parse(time.RFC3339Nano, s.FinishedAt)
	hasTime := err == nil && at.Year() > 1
	if started, startErr := time.Parse(time.RFC3339Nano, s.StartedAt); die != nil && startErr == nil && started.After(die.At) {
		return restarted(id, die) // and has ended a second time
	}
	exit := engine.Exit{ContainerID: id, Code: int32(s.ExitCode), At: at, OOMKilled: s.OOMKilled, Message: s.Error} //nolint:gosec // 0 to 255
	if !hasTime {
		exit.At = time.Now()
	}
	switch {
	case known.Kernel != nil:
		exit.Code = *known.Kernel
	case !hasTime && die != nil:
		exit.Code, exit.At = die.Code, die.At
	case die == nil && (!hasTime || !isCode(s.ExitCode) || isStartOf(&known, s.ExitCode, at)):
		// The engine was away when the container ended, and its runtime had lost the code. An
		// engine that starts again records 255, -1 or 0 then, and some the time of its own start.
		exit.Code, exit.Reason, exit.OOMKilled = engine.CodeUnknown, engine.ReasonUnknown, false
		exit.Message = "the container ended while the Docker engine was away, and the engine does not know its exit code"
	}
	return exit
}

// startTime is how long an engine needs at most, from its start until it has looked at its containers.
const startTime = time.Minute

// isStartOf reports whether an engine may have recorded a 0 while it started, of a container that its
// runtime did not have any more: Docker 20.10 does.
func isStartOf(known *Known, code int, at time.Time) bool {
	return code == 0 && !known.EngineStarted.IsZero() && !at.Before(known.EngineStarted) && at.Before(known.EngineStarted.Add(startTime))
}

// isCode reports whether the code in a state is that of a program. 255 may be, but an engine also
// uses it for a code that it has lost.
func isCode(code int) bool { return code >= 0 && code < engine.CodeUnknown }

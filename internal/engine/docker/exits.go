package docker

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// logDrainTimeout bounds how long an exit waits until the container's log is complete.
const logDrainTimeout = 10 * time.Second

// Exits delivers the exits that the Docker Engine reports. It subscribes to events first and
// lists the ended containers then, so that no exit falls between. The channel is closed when
// the connection to the engine is lost.
func (e *Engine) Exits(ctx context.Context) (<-chan engine.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream := e.client.Events(ctx, client.EventsListOptions{
		Filters: make(client.Filters).Add("type", string(events.ContainerEventType)).
			Add("event", string(events.ActionDie), string(events.ActionDestroy)),
	})
	owned, err := e.objects.list(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	// An engine that was started again may be another version with other abilities.
	if _, err := e.readFacts(ctx); err != nil {
		cancel()
		return nil, err
	}
	l := &exitListener{engine: e, ctx: ctx, end: cancel, to: make(chan engine.Exit), unstarted: make(chan string)}
	if old := e.listener.Swap(l); old != nil {
		old.end()
	}
	go l.run(stream, owned)
	return l.to, nil
}

// exitListener turns events into exits.
type exitListener struct {
	engine *Engine
	ctx    context.Context //nolint:containedctx // of the subscription
	end    context.CancelFunc
	to     chan engine.Exit
	// unstarted has the ids of containers that have ended without a process: the Docker Engine
	// sends no event of them.
	unstarted chan string
	pending   sync.WaitGroup
}

func (l *exitListener) run(stream client.EventsResult, owned map[string]container.Summary) {
	defer close(l.to)
	defer l.pending.Wait()
	defer l.end()
	for id, c := range owned {
		if s := stateOf(c.State); s == engine.StateStopped || s == engine.StateCreated {
			l.deliver(id)
		}
	}
	for {
		select {
		case message := <-stream.Messages:
			l.event(&message)
		case id := <-l.unstarted:
			l.deliver(id)
		case err := <-stream.Err:
			if l.ctx.Err() == nil {
				l.engine.log.Warn("the events of the Docker engine have ended", "error", err)
			}
			return
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *exitListener) event(message *events.Message) {
	id := l.engine.objects.idOf(message.Actor.ID)
	if id == "" {
		return
	}
	switch message.Action {
	case events.ActionDie:
		l.deliver(id)
	case events.ActionDestroy:
		if obj, _ := l.engine.objects.cached(id); !obj.removing {
			l.removed(id, message)
		}
	}
}

// deliver reads how a container has ended, waits until its log is complete, and sends the
// exit. It does not hold up other exits.
func (l *exitListener) deliver(id string) {
	ctx := l.ctx
	l.pending.Go(func() {
		got, err := l.engine.objects.inspect(ctx, id)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, errs.NotFound) {
				l.engine.log.Error("cannot read how a container has ended", "container", id, "error", err)
				l.end() // the next subscription reads it again
			}
			return
		}
		exit, ended := l.engine.exitOf(id, got)
		if !ended {
			return
		}
		exit.OOMKilled = exit.OOMKilled || l.engine.wasOutOfMemory(got)
		if !l.engine.isSandbox(id) && stateOf(got.State.Status) != engine.StateCreated {
			l.completeLog(ctx, id, got)
		}
		l.send(exit)
	})
}

// wasOutOfMemory reports whether the OOM killer killed a process of a container that has ended. The
// Docker Engine does not say it if it heard of the exit first. The kernel's log does, by the
// container's cgroup.
func (e *Engine) wasOutOfMemory(got *container.InspectResponse) bool {
	if got.State.ExitCode != 128+int(syscall.SIGKILL) || got.HostConfig.Memory <= 0 {
		return false
	}
	name := got.ID
	if e.facts.Load().CgroupDriver == podcgroup.Systemd {
		name = "docker-" + got.ID + ".scope"
	}
	killed, err := sysproc.OOMKilled(anyProcess, 0, name)
	if err != nil {
		e.log.Debug("cannot find out whether the OOM killer ended a container", "container", got.ID, "error", err)
	}
	return killed
}

// anyProcess is the pid of no process.
const anyProcess = -1

func (e *Engine) isSandbox(id string) bool {
	obj, _ := e.objects.cached(id)
	return obj.sandbox
}

// completeLog waits until all that the container has written is in its log.
func (l *exitListener) completeLog(ctx context.Context, id string, got *container.InspectResponse) {
	ctx, stop := context.WithTimeout(ctx, logDrainTimeout)
	defer stop()
	l.engine.continueLog(id, got)
	if err := l.engine.logs.Drain(ctx, id); err != nil && !errors.Is(err, errs.NotFound) {
		l.engine.log.Warn("the exit of a container is reported before its log is complete", "container", id, "error", err)
	}
}

func (l *exitListener) send(exit engine.Exit) {
	select {
	case l.to <- exit:
	case <-l.ctx.Done():
	}
}

// removed reports the end of a container that was removed behind berth's back.
func (l *exitListener) removed(id string, message *events.Message) {
	l.engine.objects.forget(id)
	l.send(engine.Exit{
		ContainerID: id, Code: engine.CodeUnknown, At: time.Unix(0, message.TimeNano), Reason: engine.ReasonUnknown,
		Message: "somebody else removed the container from the Docker engine",
	})
}

// exitOf reads an exit from a container's state.
func (e *Engine) exitOf(id string, got *container.InspectResponse) (exit engine.Exit, ended bool) {
	s := got.State
	exit = engine.Exit{ContainerID: id, Code: int32(s.ExitCode), OOMKilled: s.OOMKilled} //nolint:gosec // 0 to 255
	at, err := time.Parse(time.RFC3339Nano, s.FinishedAt)
	switch state := stateOf(s.Status); {
	case state == engine.StateCreated:
		return e.unstarted.of(id, s.Error)
	case state != engine.StateStopped:
		return exit, false
	case err != nil || at.Year() <= 1:
		// The Docker Engine was killed before it wrote that down.
		exit.At, exit.Code, exit.Reason = time.Now(), engine.CodeUnknown, engine.ReasonUnknown
		exit.Message = "the Docker engine does not know when and how the container ended"
		return exit, true
	}
	exit.At = at
	if s.Error != "" {
		exit.Message = s.Error
	}
	return exit, true
}

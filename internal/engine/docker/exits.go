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
	"github.com/berthrun/berth/internal/engine/docker/endings"
	"github.com/berthrun/berth/internal/engine/docker/runtimecgroup"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// logDrainTimeout bounds how long an exit waits until the container's log is complete.
const logDrainTimeout = 10 * time.Second

// replayed is how long before its subscription to events a listener still gets them. An engine that
// unmounts the file system of a container lists it as running meanwhile.
const replayed = 2 * time.Minute

// Exits delivers the exits that the Docker Engine reports. It subscribes to events first and
// lists the containers then, so that no exit falls between. The channel is closed when the
// connection to the engine is lost.
func (e *Engine) Exits(ctx context.Context) (<-chan engine.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	// The engine answers before it has subscribed the client, and it reports the end of a container
	// before it lists it as exited. With a time, it also sends what happened before.
	began := time.Now()
	stream := e.client.Events(ctx, client.EventsListOptions{
		Since: began.Add(-replayed).Format(time.RFC3339Nano),
		Filters: make(client.Filters).Add("type", string(events.ContainerEventType)).
			Add("event", string(events.ActionDie), string(events.ActionStart), string(events.ActionDestroy)),
	})
	known := e.objects.known()
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
	started, err := runtimecgroup.EngineStarted(ctx, e.client.Endpoint())
	if err != nil {
		e.log.Debug("it is not known when the Docker engine was started", "error", err)
	}
	e.engineStarted.Store(&started)
	e.scores.Look(ctx)
	e.subscribedAt.Store(time.Now().UnixNano())
	l := &exitListener{engine: e, ctx: ctx, end: cancel, began: began, to: make(chan engine.Exit), ends: make(chan end)}
	if old := e.listener.Swap(l); old != nil {
		old.end()
	}
	go l.run(stream, known, owned)
	return l.to, nil
}

// exitListener turns events into exits.
type exitListener struct {
	engine *Engine
	ctx    context.Context //nolint:containedctx // of the subscription
	end    context.CancelFunc
	// began is when the subscription was asked for. Earlier events are replayed ones.
	began time.Time
	// live is true once an event was not a replayed one.
	live bool
	to   chan engine.Exit
	// ends has those that the Docker Engine sends no event of, and those that were held back.
	ends    chan end
	pending sync.WaitGroup
}

// end is the end of a container. die is nil when its event was not seen.
type end struct {
	id  string
	die *endings.Die
}

// deliverEnd delivers an end of a container that the Docker Engine sends no event of, or that was held
// back, if there is a listener.
func (e *Engine) deliverEnd(id string, die *endings.Die) {
	l := e.listener.Load()
	if l == nil {
		return
	}
	select {
	case l.ends <- end{id, die}:
	case <-l.ctx.Done():
	}
}

func (l *exitListener) run(stream client.EventsResult, known map[string]object, owned map[string]container.Summary) {
	defer close(l.to)
	defer l.pending.Wait()
	defer l.end()
	l.catchUp(known, owned)
	for {
		select {
		case message := <-stream.Messages:
			l.event(&message)
		case ended := <-l.ends:
			l.deliver(ended.id, ended.die)
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

// catchUp delivers what happened before the subscription: known is what the engine had before,
// owned what it has now.
func (l *exitListener) catchUp(known map[string]object, owned map[string]container.Summary) {
	for id, c := range owned {
		obj, ok := l.engine.objects.cached(id)
		if !ok {
			continue
		}
		switch stateOf(c.State) {
		case engine.StateStopped:
			if !obj.starting.Hold(nil) {
				obj.died.Store(true)
				l.deliver(id, nil)
			}
		case engine.StateCreated:
			// The engine may have a fault of a start that it has cancelled since berth was killed. Such
			// a container stays CREATED: a kubelet runs another one in its place, whatever the pod's
			// restart policy is.
			if !obj.starting.Hold(nil) && l.engine.unstarted.Ended(id) {
				l.deliver(id, nil)
			}
		case engine.StateRunning:
			l.started(id)
		case engine.StateBroken: // the event of its removal follows
		}
	}
	for id, obj := range known {
		if _, exists := owned[id]; !exists && !obj.removing.Load() {
			l.engine.objects.forget(id)
			l.pending.Go(func() { l.send(endings.Removed(id, nil)) })
		}
	}
}

func (l *exitListener) event(message *events.Message) {
	id := l.engine.objects.idOf(message.Actor.ID)
	obj, ok := l.engine.objects.cached(id)
	if !ok || obj.removing.Load() {
		return
	}
	// Only the first events are replayed. A clock that is set back makes no other one of them.
	l.live = l.live || message.TimeNano >= l.began.UnixNano()
	if !l.live {
		l.replayedEvent(id, obj, message)
		return
	}
	switch message.Action {
	case events.ActionDie:
		die := endings.DieOf(message)
		if !obj.starting.Hold(die) && !obj.died.Swap(true) { // else it was restarted, and its first end counts
			l.deliver(id, die)
		}
	case events.ActionStart:
		l.started(id)
	case events.ActionDestroy:
		l.engine.objects.forget(id)
		if !obj.died.Load() {
			l.pending.Go(func() { l.send(endings.Removed(id, nil)) })
		}
	}
}

// replayedEvent delivers the end of a container that the list had as running. Other events are in
// the list already. The end may be that of an attempt to start a container that runs now.
func (l *exitListener) replayedEvent(id string, obj object, message *events.Message) {
	if message.Action != events.ActionDie {
		return
	}
	die := endings.DieOf(message)
	if obj.starting.Hold(die) || obj.died.Load() {
		return
	}
	l.pending.Go(func() {
		got, err := l.engine.client.ContainerInspect(l.ctx, obj.engineID, client.ContainerInspectOptions{})
		switch state := got.Container.State; {
		case errors.Is(err, errs.NotFound):
			return // the event of its removal follows
		case err != nil || state == nil:
			if l.ctx.Err() == nil {
				l.engine.log.Error("cannot read how a container has ended", "container", id, "error", err)
				l.end() // the next subscription reads it again
			}
		case stateOf(state.Status) == engine.StateStopped && !obj.died.Swap(true):
			l.deliver(id, die)
		}
	})
}

// started ends a container that another program has started again: its exit is reported, and a
// kubelet may run its successor.
func (l *exitListener) started(id string) {
	obj, ok := l.engine.objects.cached(id)
	if !ok || !obj.died.Load() || obj.removing.Load() || obj.starting.UnderWay() {
		return
	}
	l.pending.Go(func() {
		l.engine.log.Warn("another program has started a container that had ended; ending it", "container", id, "dockerID", obj.engineID)
		l.killRestarted(id)
	})
}

func (l *exitListener) killRestarted(id string) {
	if err := l.engine.Signal(l.ctx, id, syscall.SIGKILL, true); errs.IgnoreNotFound(err) != nil && l.ctx.Err() == nil {
		l.engine.log.Error("cannot end a container that another program has started", "container", id, "error", err)
	}
}

// deliver reads how a container has ended, waits until its log is complete, and sends the
// exit. It does not hold up other exits. die is nil when the event of the end was not seen.
func (l *exitListener) deliver(id string, die *endings.Die) {
	ctx := l.ctx
	obj, ok := l.engine.objects.cached(id)
	if !ok {
		return
	}
	l.pending.Go(func() {
		got, err := l.engine.client.ContainerInspect(ctx, obj.engineID, client.ContainerInspectOptions{})
		state := got.Container.State
		switch {
		case obj.removing.Load():
			return // a removal through berth is not an exit
		case errors.Is(err, errs.NotFound):
			l.send(endings.Removed(id, die))
			return
		case err != nil || state == nil || got.Container.Config == nil:
			if ctx.Err() == nil {
				l.engine.log.Error("cannot read how a container has ended", "container", id, "error", err)
				l.end() // the next subscription reads it again
			}
			return
		}
		exit, ended := l.engine.exitOf(id, state, die)
		if ended && !obj.sandbox && stateOf(state.Status) != engine.StateCreated {
			exit.OOMKilled = exit.OOMKilled || exit.Reason == "" && l.engine.wasOutOfMemory(&got.Container, exit.Code)
			if endings.Restarted(state, die) {
				l.killRestarted(id)
			}
			l.endStrays(ctx, id, &got.Container)
			l.completeLog(ctx, id, &got.Container)
		}
		if ended {
			l.send(exit)
		} else if die != nil {
			obj.died.Store(false) // the event was of an attempt to start it that failed
		}
	})
}

// exitOf reads how a container has ended. die is nil when the event of the end was not seen.
func (e *Engine) exitOf(id string, s *container.State, die *endings.Die) (exit engine.Exit, ended bool) {
	if stateOf(s.Status) == engine.StateCreated {
		return e.unstarted.Of(id, s.Error)
	}
	known := endings.Known{Die: die}
	if started := e.engineStarted.Load(); started != nil {
		known.EngineStarted = *started
	}
	if obj, ok := e.objects.cached(id); ok {
		known.Kernel = obj.witness.Code()
	}
	return endings.Of(id, s, known)
}

// endStrays kills what runs on of a container that has exited.
func (l *exitListener) endStrays(ctx context.Context, id string, got *container.InspectResponse) {
	if got.HostConfig == nil {
		return
	}
	if err := l.engine.strays.Kill(ctx, id, got.ID, l.engine.strays.CgroupOf(got)); err != nil && ctx.Err() == nil {
		l.engine.log.Error("a container has exited, and its processes run on", "container", id, "error", err)
	}
}

// wasOutOfMemory reports whether the OOM killer killed a process of a container that has ended. The
// Docker Engine does not say it if it heard of the exit first. The kernel's log does, by the
// container's cgroup. code is that of the exit, which the engine may have lost.
func (e *Engine) wasOutOfMemory(got *container.InspectResponse, code int32) bool {
	if code != 128+int32(syscall.SIGKILL) || got.HostConfig == nil || got.HostConfig.Memory <= 0 {
		return false
	}
	killed, err := sysproc.OOMKilled(anyProcess, 0, e.strays.CgroupName(got.ID))
	if err != nil {
		e.log.Debug("cannot find out whether the OOM killer ended a container", "container", got.ID, "error", err)
	}
	return killed
}

// anyProcess is the pid of no process.
const anyProcess = -1

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

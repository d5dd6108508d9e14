package logs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
)

// A follower that has to look again waits lookMin, then twice as long, up to lookMax.
const (
	lookMin = 20 * time.Millisecond
	lookMax = time.Second
)

// drainPatience is how long the stream of a container that has ended may be silent before it
// is closed. Engines close it at once, but for faults of theirs.
const drainPatience = time.Second

// follower follows one container.
//
//	created ──▶ running ──▶ ended ──▶ complete
//	   │ look      │ follow     │ read the rest
//
// After each stream it looks again at the container. An engine that does not answer changes
// nothing: the follower tries again until the engine knows the container, or does not.
type follower struct {
	container Container
	engine    engine
	log       *slog.Logger
	outlet    *outlet

	done chan struct{} // closed by stop
	stop func()
	// complete is closed when all output is in the log.
	complete chan struct{}
	wake     chan struct{}
	draining chan struct{}
	// tail is the index in tails of how much of the engine's log is read.
	tail int
	// silent is true while it was logged that the engine cannot be read.
	silent bool
}

// tails are how many messages the engine is made to deliver at most. An engine cannot read its
// own file behind a damaged place, which a crash of it can leave. It can read from the end.
func tails() []string { return []string{"all", "100000", "1000", "10", "0"} }

func newFollower(m *Manager, c Container) *follower {
	f := &follower{
		container: c, engine: m.engine, log: m.log.With("container", c.ID, "log", c.Path),
		done: make(chan struct{}), complete: make(chan struct{}),
		wake: make(chan struct{}, 1), draining: make(chan struct{}, 1),
	}
	f.stop = sync.OnceFunc(func() { close(f.done) })
	f.outlet = newOutlet(&c, m, f.log, f.done)
	return f
}

func (f *follower) hurry() { signal(f.wake) }

// run follows until the log is complete or stop is called.
func (f *follower) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer f.outlet.shut()
	go func() {
		defer cancel()
		select {
		case <-f.done:
		case <-ctx.Done():
		}
	}()
	if !f.open(ctx) {
		return
	}
	for pause := lookMin; ; pause = min(2*pause, lookMax) {
		progressed, over := f.round(ctx)
		if over || ctx.Err() != nil {
			break
		}
		if progressed {
			pause = lookMin
		}
		if !f.rest(ctx, pause) {
			return
		}
	}
	if ctx.Err() == nil && f.outlet.finish(ctx) == nil {
		close(f.complete)
	}
}

// open finds out what is in the log. It is false when stop was called.
func (f *follower) open(ctx context.Context) bool {
	for pause := backoffMin; ; pause = min(2*pause, backoffMax) {
		err := f.outlet.open()
		if err == nil {
			return true
		}
		f.outlet.setFault(err)
		if !f.rest(ctx, pause) {
			return false
		}
	}
}

// rest waits. It is false when stop was called.
func (f *follower) rest(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// round looks at the container and reads what it can. over is true when the engine has no
// more output.
func (f *follower) round(ctx context.Context) (progressed, over bool) {
	got, err := f.engine.ContainerInspect(ctx, f.container.EngineID, client.ContainerInspectOptions{})
	if errors.Is(err, errs.NotFound) {
		return false, true
	}
	if err != nil {
		f.failed(ctx, err)
		return false, false
	}
	state := got.Container.State
	switch {
	case state == nil || state.Status == container.StateCreated:
		return false, false
	case state.Running || state.Restarting:
		progressed, err = f.read(ctx, true)
		if isOver(err) {
			f.log.Warn("the engine cannot read this container's output; its log stays as it is", "error", err)
			return progressed, true
		}
		f.failed(ctx, err)
		return progressed, false
	}
	if progressed, over = f.readRest(ctx); over && storesLater(got.Container.HostConfig) {
		progressed = f.readLate(ctx) || progressed
	}
	return progressed, over
}

// isOver reports whether the engine will never deliver output.
func isOver(err error) bool {
	return errors.Is(err, errs.NotFound) || errors.Is(err, errs.Unsupported) || errors.Is(err, errs.Exists)
}

// readRest reads what is left of a container that has ended.
func (f *follower) readRest(ctx context.Context) (progressed, over bool) {
	if f.tail == 0 && f.isRead(ctx) {
		return true, true
	}
	progressed, err := f.read(ctx, false)
	switch {
	case err == nil || isOver(err):
		return progressed, true
	case f.tail == len(tails())-1:
		f.log.Error("cannot read the end of this container's output from the engine", "error", err)
		return progressed, true
	}
	f.failed(ctx, err)
	return progressed, false
}

// isRead reports whether the engine's last message is in the log. An engine reads its log from
// the end much faster than from the beginning.
func (f *follower) isRead(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.engine.ContainerLogs(ctx, f.container.EngineID, f.options("", "1", false))
	if err != nil {
		return false
	}
	defer stream.Close()
	m, err := f.decoder(stream).next()
	if err != nil {
		return false
	}
	return f.outlet.contains(m)
}

func (f *follower) options(since, tail string, follow bool) client.ContainerLogsOptions {
	return client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: follow, Since: since, Tail: tail,
	}
}

func (f *follower) decoder(stream client.ContainerLogsResult) decoder {
	if f.container.TTY {
		return newTerminal(stream)
	}
	return newFrames(stream)
}

// failed logs an error of the engine, once until the engine can be read.
func (f *follower) failed(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil || f.silent {
		return
	}
	f.silent = true
	level := slog.LevelWarn
	if errors.Is(err, errs.Unavailable) {
		// That the engine does not answer is reported elsewhere, and not for each container.
		level = slog.LevelDebug
	}
	f.log.Log(ctx, level, "cannot read the output of this container from the engine; trying again", "error", err)
}

func (f *follower) reopen(ctx context.Context) error {
	if err := f.outlet.reopen(ctx); err != nil {
		return fmt.Errorf("log of container %s: %w", f.container.ID, err)
	}
	return nil
}

// drain waits until the log is complete.
func (f *follower) drain(ctx context.Context) error {
	signal(f.draining)
	f.hurry()
	for {
		changed, fault := f.outlet.state()
		if fault != nil && gone(fault) {
			return f.incomplete(fault)
		}
		select {
		case <-f.complete:
			return nil
		case <-changed:
		case <-f.done:
			return f.incomplete(errors.New("nothing follows the container"))
		case <-ctx.Done():
			err := ctx.Err()
			if fault != nil {
				err = fmt.Errorf("%w: %w", err, fault)
			}
			return f.incomplete(err)
		}
	}
}

func (f *follower) incomplete(why error) error {
	return fmt.Errorf("cannot complete the log of container %s: %w (%w)", f.container.ID, why, errs.Unavailable)
}

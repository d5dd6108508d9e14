package pod

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/record"
)

// StopContainer sends the stop signal, waits timeout seconds, then kills. A
// second request with less time shortens the wait of the first. Nil when the
// container does not run or does not exist.
func (c *Containers) StopContainer(ctx context.Context, id string, timeout int64) error {
	full, err := c.records.ContainerID(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	rec, err := c.records.Containers.Get(full)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	return c.stopAndWait(ctx, rec, seconds(timeout))
}

func (c *Containers) stopAndWait(ctx context.Context, rec *record.Container, timeout time.Duration) error {
	release := c.graces.hold(rec.ID, timeout) // also for the job that this one joins
	j, err := c.jobs.Enter(ctx, c.stopContainerRequest(rec, timeout))
	if err != nil {
		release()
		return err
	}
	_, err = j.Wait(ctx)
	select {
	case <-j.Done():
		release()
	default: // the caller gave up, but its timeout still holds
		go func() {
			<-j.Done()
			release()
		}()
	}
	return err
}

func (c *Containers) stopContainerRequest(rec *record.Container, timeout time.Duration) *job.Request {
	return &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindStop,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			err := c.stopContainer(ctx, j, rec.ID, timeout)
			if err != nil && ctx.Err() == nil {
				err = fmt.Errorf("%w; berth goes on trying", err)
				c.retries.Later("stop "+rec.ID, func() { c.stopAgain(context.WithoutCancel(ctx), rec.ID, timeout) })
			} else {
				c.retries.Done("stop " + rec.ID)
			}
			return rec.ID, err
		},
	}
}

// stopAgain retries a failed stop: the container keeps the rest of its grace period.
// timeout is for a stop that was never recorded.
func (c *Containers) stopAgain(ctx context.Context, id string, timeout time.Duration) {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return // removed meanwhile
	}
	if rec.Stop != nil {
		timeout = rec.Stop.Left()
	}
	c.startDetached(ctx, c.stopContainerRequest(rec, timeout))
}

// stopContainer is the stop policy, for every backend: the stop signal once,
// the grace period, SIGKILL. The intent is in the record until the container has exited.
func (c *Containers) stopContainer(ctx context.Context, j *job.Job, id string, timeout time.Duration) error {
	defer c.graces.hold(id, timeout)()
	for {
		exit := c.exits.Next(id)
		by, changed := c.graces.get(id)
		rec, err := c.intendStop(id, by)
		if err != nil || !rec.Alive() {
			c.exits.Notify(id)
			return errs.IgnoreNotFound(err)
		}
		left := time.Until(by)
		if left <= 0 {
			return c.kill(ctx, j, id)
		}
		if !rec.Stop.Signalled {
			if err := c.sendStopSignal(ctx, j, rec); err != nil {
				return err
			}
		}
		j.StageUntil("wait for exit", "the container, which has until "+by.Format(time.TimeOnly), by)
		timer := time.NewTimer(left)
		select {
		case <-exit:
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// intendStop records that the container is to stop, and the deadline. It does not change a
// container that does not run.
func (c *Containers) intendStop(id string, by time.Time) (*record.Container, error) {
	rec, err := c.records.Containers.Get(id)
	if err != nil {
		return nil, err
	}
	if !rec.Alive() || rec.Stop != nil && !by.Before(rec.Stop.By) {
		return rec, nil
	}
	rec, err = c.records.Containers.Update(id, func(r *record.Container) error {
		if !r.Alive() {
			return record.ErrUnchanged
		}
		r.Stop = &record.StopIntent{By: by, Timeout: max(time.Until(by), 0), Signalled: r.Stop != nil && r.Stop.Signalled}
		return nil
	})
	if errors.Is(err, record.ErrUnchanged) {
		return c.records.Containers.Get(id)
	}
	return rec, err
}

// sendStopSignal sends the signal and records that it was sent: some programs take a
// second one for "at once".
func (c *Containers) sendStopSignal(ctx context.Context, j *job.Job, rec *record.Container) error {
	sig, err := rec.StopSignal()
	if err != nil {
		c.log.Warn("cannot use the stop signal; sending SIGTERM", "container", rec.ID, "error", err)
	}
	j.Stage("send stop signal", "the engine")
	if err := c.signal(ctx, rec.ID, sig, false); err != nil {
		return fmt.Errorf("cannot stop container %q: %w", rec.ID, err)
	}
	_, err = c.records.Containers.Update(rec.ID, func(r *record.Container) error {
		if r.Stop != nil {
			r.Stop = &record.StopIntent{By: r.Stop.By, Timeout: r.Stop.Timeout, Signalled: true}
		}
		return nil
	})
	return err
}

// kill sends SIGKILL to all processes of the container and waits for its exit,
// which follows unless the kernel itself hangs.
func (c *Containers) kill(ctx context.Context, j *job.Job, id string) error {
	j.Stage("kill", "the engine")
	if err := c.signal(ctx, id, syscall.SIGKILL, true); err != nil {
		return fmt.Errorf("cannot kill container %q: %w", id, err)
	}
	j.Stage("wait for exit", "the kernel, after SIGKILL")
	killed, cancel := context.WithTimeout(ctx, c.limits.Kill)
	defer cancel()
	err := c.exits.Wait(killed, id)
	if err == nil || ctx.Err() != nil {
		return err
	}
	state, err := c.stateOf(ctx, id)
	if err != nil {
		return fmt.Errorf("cannot find out whether container %q has ended: %w", id, err)
	}
	if !hasEnded(state) {
		return fmt.Errorf("cannot stop container %q: %w: it did not exit within %s after SIGKILL (a process in uninterruptible sleep?)", id, errs.Unavailable, c.limits.Kill)
	}
	if state == engine.StateStopped {
		j.Stage("wait for exit", "the engine, which completes the log before it reports the exit")
		reported, cancel := context.WithTimeout(ctx, c.limits.Settle)
		defer cancel()
		if err := c.exits.Wait(reported, id); err == nil || ctx.Err() != nil {
			return err
		}
	}
	c.exits.RecordUnknown(id, "it has ended; its exit code was not reported")
	return nil
}

// signal sends a signal in bounded time. Nil when there is nothing to send it to.
func (c *Containers) signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	ctx, cancel := context.WithTimeout(ctx, c.limits.Kill)
	defer cancel()
	err := call.Run(ctx, c.calls, "signals to "+id, "send signal", func(ctx context.Context) error {
		return c.engine.Signal(ctx, id, sig, all)
	})
	return errs.IgnoreNotFound(err)
}

// stateOf returns the state of a container in the engine.
func (c *Containers) stateOf(ctx context.Context, id string) (engine.State, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limits.Kill)
	defer cancel()
	actual, err := c.engine.List(ctx)
	if err != nil {
		return engine.StateUnknown, err
	}
	for _, a := range actual {
		if a.ID == id {
			return a.State, nil
		}
	}
	return engine.StateGone, nil
}

// hasEnded reports whether nothing runs of a container that has a state in the engine. Something may run of one
// whose state is unknown.
func hasEnded(state engine.State) bool {
	return state == engine.StateStopped || state == engine.StateBroken || state == engine.StateGone
}

// createdPause is the pause between two checks of a container whose exit is not reported.
const createdPause = 100 * time.Millisecond

// endCreated ends the init of a container that was never started: it waits in the
// namespaces and the cgroup of its sandbox, which is stopping.
func (c *Containers) endCreated(ctx context.Context, rec *record.Container) error {
	_, err := c.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindStop,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			j.Stage("kill", "the engine")
			return rec.ID, c.killCreated(ctx, rec.ID)
		},
	})
	return err
}

func (c *Containers) killCreated(ctx context.Context, id string) error {
	for {
		exit := c.exits.Next(id)
		rec, err := c.records.Containers.Get(id)
		if err != nil || rec.State == record.ContainerExited || rec.StartError() != "" {
			c.exits.Notify(id)
			return errs.IgnoreNotFound(err)
		}
		if err := c.signal(ctx, id, syscall.SIGKILL, true); err != nil {
			return fmt.Errorf("cannot kill container %q, which was not started: %w", id, err)
		}
		select {
		case <-exit:
			continue
		case <-time.After(createdPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		state, err := c.stateOf(ctx, id)
		if err != nil {
			return fmt.Errorf("cannot find out whether container %q has ended: %w", id, err)
		}
		if hasEnded(state) {
			c.exits.RecordUnknown(id, "its sandbox was stopped before it was started")
		}
	}
}

// seconds turns CRI's timeout into a duration; negative is none.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), math.MaxInt32)) * time.Second
}

// gracePeriods has, for each container that is stopping, when its grace period ends.
type gracePeriods struct {
	mu      *sync.Mutex
	pending map[string]*grace
}

type grace struct {
	by      time.Time
	changed chan struct{}
	// holders counts the stops of the container, jobs and requests. The last one removes
	// the grace period.
	holders int
}

func newGracePeriods() gracePeriods { return gracePeriods{new(sync.Mutex), map[string]*grace{}} }

// hold makes the container's grace period end after timeout, if not sooner. It is kept until
// each caller has called its release once.
func (g gracePeriods) hold(id string, timeout time.Duration) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pending[id]
	if p == nil {
		p = &grace{by: time.Now().Add(timeout), changed: make(chan struct{})}
		g.pending[id] = p
	}
	p.shorten(timeout)
	p.holders++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if p.holders--; p.holders == 0 {
			delete(g.pending, id)
		}
	}
}

// shorten needs the lock.
func (p *grace) shorten(timeout time.Duration) {
	by := time.Now().Add(timeout)
	if !by.Before(p.by) {
		return
	}
	close(p.changed)
	p.by, p.changed = by, make(chan struct{})
}

// get returns when the grace period ends, and a channel that is closed when that changes.
// The caller holds the grace period.
func (g gracePeriods) get(id string) (by time.Time, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pending[id]
	return p.by, p.changed
}

// end ends the grace period of a container that is stopping, if it has one.
func (g gracePeriods) end(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pending[id]; p != nil {
		p.shorten(0)
	}
}

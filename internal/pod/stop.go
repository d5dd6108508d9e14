package pod

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/sys/sysproc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopContainer sends the stop signal, waits timeout seconds, then kills. A
// second request with less time shortens the wait of the first. Nil when the
// container does not run or does not exist.
func (s *Service) StopContainer(ctx context.Context, id string, timeout int64) error {
	full, err := s.containerID(id)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	rec, err := s.containers.Get(full)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	return s.stopAndWait(ctx, rec, seconds(timeout))
}

func (s *Service) stopAndWait(ctx context.Context, rec *ContainerRecord, timeout time.Duration) error {
	release := s.graces.hold(rec.ID, timeout) // also for the job that this one joins
	j, err := s.jobs.Enter(ctx, s.stopContainerRequest(rec, timeout))
	if err != nil {
		release()
		return err
	}
	_, err = j.Wait(ctx)
	select {
	case <-j.Done():
		release()
	default: // who gave up meant it all the same
		go func() {
			<-j.Done()
			release()
		}()
	}
	return err
}

func (s *Service) stopContainerRequest(rec *ContainerRecord, timeout time.Duration) *job.Request {
	return &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindStop,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			err := s.stopContainer(ctx, j, rec.ID, timeout)
			if err != nil && ctx.Err() == nil {
				s.retries.later("stop "+rec.ID, func() { s.stopAgain(context.WithoutCancel(ctx), rec.ID, timeout) })
			} else {
				s.retries.done("stop " + rec.ID)
			}
			return rec.ID, err
		},
	}
}

// stopAgain goes on with a stop that failed: the container keeps what is left of the
// patience that it was promised. timeout is for a stop that was never written down.
func (s *Service) stopAgain(ctx context.Context, id string, timeout time.Duration) {
	rec, err := s.containers.Get(id)
	if err != nil {
		return // removed meanwhile
	}
	if rec.Stop != nil {
		timeout = rec.Stop.left()
	}
	s.pursue(ctx, s.stopContainerRequest(rec, timeout))
}

// stopContainer is the stop policy, for every backend: the stop signal once,
// patience, SIGKILL. The intent is in the record until the container has exited.
func (s *Service) stopContainer(ctx context.Context, j *job.Job, id string, timeout time.Duration) error {
	defer s.graces.hold(id, timeout)()
	for {
		exit := s.ends.of(id)
		by, changed := s.graces.get(id)
		rec, err := s.intendStop(id, by)
		if err != nil || !rec.alive() {
			s.ends.tell(id)
			return errs.IgnoreNotFound(err)
		}
		left := time.Until(by)
		if left <= 0 {
			return s.kill(ctx, j, id)
		}
		if !rec.Stop.Signalled {
			if err := s.sendStopSignal(ctx, j, rec); err != nil {
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

// intendStop writes down that the container is to stop, and by when. A container
// that does not run is left as it is.
func (s *Service) intendStop(id string, by time.Time) (*ContainerRecord, error) {
	rec, err := s.containers.Get(id)
	if err != nil {
		return nil, err
	}
	if !rec.alive() || rec.Stop != nil && !by.Before(rec.Stop.By) {
		return rec, nil
	}
	rec, err = s.containers.Update(id, func(r *ContainerRecord) error {
		if !r.alive() {
			return errAlready
		}
		r.Stop = &StopIntent{By: by, Timeout: max(time.Until(by), 0), Signalled: r.Stop != nil && r.Stop.Signalled}
		return nil
	})
	if errors.Is(err, errAlready) {
		return s.containers.Get(id)
	}
	return rec, err
}

// sendStopSignal sends it and writes down that it was sent: some programs take a
// second one for "at once".
func (s *Service) sendStopSignal(ctx context.Context, j *job.Job, rec *ContainerRecord) error {
	sig, err := stopSignal(rec)
	if err != nil {
		s.log.Warn("the stop signal is unknown, SIGTERM is sent", "container", rec.ID, "err", err)
	}
	j.Stage("send stop signal", "the engine")
	if err := s.signal(ctx, rec.ID, sig, false); err != nil {
		return fmt.Errorf("cannot stop container %q: %w", rec.ID, err)
	}
	_, err = s.containers.Update(rec.ID, func(r *ContainerRecord) error {
		if r.Stop != nil {
			r.Stop = &StopIntent{By: r.Stop.By, Timeout: r.Stop.Timeout, Signalled: true}
		}
		return nil
	})
	return err
}

// kill sends SIGKILL to all that the container runs and waits for its exit,
// which follows unless the kernel itself is stuck.
func (s *Service) kill(ctx context.Context, j *job.Job, id string) error {
	j.Stage("kill", "the engine")
	if err := s.signal(ctx, id, syscall.SIGKILL, true); err != nil {
		return fmt.Errorf("cannot kill container %q: %w", id, err)
	}
	j.Stage("wait for exit", "the kernel, after SIGKILL")
	patience, cancel := context.WithTimeout(ctx, s.limits.Kill)
	defer cancel()
	err := s.ended(patience, id)
	if err == nil || ctx.Err() != nil {
		return err
	}
	gone, err := s.gone(ctx, id)
	if err != nil {
		return fmt.Errorf("cannot tell whether container %q has ended: %w", id, err)
	}
	if !gone {
		return fmt.Errorf("cannot stop container %q: %w: it did not exit within %s after SIGKILL (a process in uninterruptible sleep?)", id, errs.Unavailable, s.limits.Kill)
	}
	s.settle(id, "its end was seen, its exit code was not")
	return nil
}

// signal sends a signal in bounded time. Nil when there is nothing to send it to.
func (s *Service) signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Kill)
	defer cancel()
	_, err := callFor(ctx, s.calls, "signals to "+id, "send signal", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.opts.Engine.Signal(ctx, id, sig, all)
	})
	return errs.IgnoreNotFound(err)
}

// gone asks the engine whether nothing of the container runs.
func (s *Service) gone(ctx context.Context, id string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Kill)
	defer cancel()
	actual, err := s.opts.Engine.List(ctx)
	if err != nil {
		return false, err
	}
	for _, a := range actual {
		if a.ID == id && (a.State == engine.StateRunning || a.State == engine.StateCreated) {
			return false, nil
		}
	}
	return true, nil
}

// stopSignal is the request's, else the image's, else SIGTERM. It is SIGTERM too
// when the name is unknown, with an error that says so.
func stopSignal(rec *ContainerRecord) (syscall.Signal, error) {
	name := rec.Image.StopSignal
	if asked := rec.Config.Get().GetStopSignal(); asked != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		name = criSignalName(asked)
	}
	if name == "" {
		return syscall.SIGTERM, nil
	}
	sig, err := sysproc.ParseSignal(name)
	if err != nil {
		return syscall.SIGTERM, err
	}
	return sig, nil
}

// criStopSignal is the signal that stopSignal would send, as CRI spells it.
func (r *ContainerRecord) criStopSignal() runtimeapi.Signal {
	if asked := r.Config.Get().GetStopSignal(); asked != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return asked
	}
	sig, err := stopSignal(r)
	if err != nil {
		return runtimeapi.Signal_SIGNAL_SIGTERM
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(sysproc.SignalName(sig))
	if number, known := runtimeapi.Signal_value["SIGNAL_"+name]; known {
		return runtimeapi.Signal(number)
	}
	return runtimeapi.Signal_SIGNAL_SIGTERM
}

// criSignalName turns CRI's spelling (SIGNAL_SIGRTMINPLUS3) into the usual one
// (SIGRTMIN+3).
func criSignalName(sig runtimeapi.Signal) string {
	name := strings.TrimPrefix(sig.String(), "SIGNAL_")
	name = strings.Replace(name, "PLUS", "+", 1)
	return strings.Replace(name, "MINUS", "-", 1)
}

// seconds turns CRI's timeout into a duration; negative is none.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), math.MaxInt32)) * time.Second
}

// graces holds, for each container that is stopping, when its patience ends.
type graces struct {
	mu      *sync.Mutex
	pending map[string]*grace
}

type grace struct {
	by      time.Time
	changed chan struct{}
	// holders are the stops of the container, jobs and requests. The last one takes it
	// away.
	holders int
}

func newGraces() graces { return graces{new(sync.Mutex), map[string]*grace{}} }

// hold makes the container's patience end after timeout, if not sooner, for as long as
// somebody holds it. release is called once.
func (g graces) hold(id string, timeout time.Duration) (release func()) {
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

// get returns when the patience ends, and a channel that is closed when that changes.
// The caller holds it.
func (g graces) get(id string) (by time.Time, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pending[id]
	return p.by, p.changed
}

// end ends the patience of a container that is stopping now, if one is.
func (g graces) end(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pending[id]; p != nil {
		p.shorten(0)
	}
}

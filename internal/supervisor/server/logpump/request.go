package logpump

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Reopen goes over to a new file at the log's path, which it makes if nobody has.
// What was read before goes to the old file as far as its lines were complete. On
// error the old file stays the log: Unavailable when it cannot be completed, or
// the directory is missing; Deadline when ctx ends first, and then it may still
// happen.
func (p *Pump) Reopen(ctx context.Context) error {
	result := make(chan error, 1)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fmt.Errorf("log pump was closed: %w", errs.State)
	}
	p.reopens = append(p.reopens, result)
	p.retry()
	p.mu.Unlock()
	return p.await(ctx, result, "reopen the log")
}

// drain is one call of Drain.
type drain struct {
	result chan error
	// targeted: the streams know how far they have to come.
	targeted bool
}

// Drain writes all that is in the pipes and in the stages, also a last line
// without newline, and ends the subscriptions. It is for a container whose
// processes have ended: its exit may be reported when Drain has returned, so that who
// sees the exit finds the log complete. If somebody goes on writing, Drain ends
// with what was there when it was called.
//
// On error (Deadline when ctx ends first) it may be called again; the pump goes on
// trying meanwhile.
func (p *Pump) Drain(ctx context.Context) error {
	d := &drain{result: make(chan error, 1)}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fmt.Errorf("log pump was closed: %w", errs.State)
	}
	p.drains = append(p.drains, d)
	p.retry()
	p.mu.Unlock()
	return p.await(ctx, d.result, "drain the log")
}

// await waits for the worker's answer.
func (p *Pump) await(ctx context.Context, result <-chan error, what string) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	if why := p.LogError(); why != nil {
		return fmt.Errorf("cannot %s: %w (%w): %w", what, why, ctx.Err(), errs.Deadline)
	}
	return fmt.Errorf("cannot %s: %w: %w", what, ctx.Err(), errs.Deadline)
}

// setTargets sets how far the streams are drained. Only the worker calls it; p.mu is held.
func (p *Pump) setTargets(d *drain) {
	if d.targeted {
		return
	}
	d.targeted = true
	// Not before the streams know how far they have to come: a worker in the
	// middle of a turn would take what it has for the last line.
	p.final = true
	for i := range p.streams {
		s := &p.streams[i]
		s.busy = true
		s.drainTo = s.total
		if s.pipe == nil || s.ended {
			continue
		}
		if n, err := sysfd.PipeBuffered(s.pipe); err == nil {
			s.drainTo += int64(n)
		}
	}
}

// finishDrains answers the drains whose streams have come far enough. It is the
// worker's; p.mu is held.
func (p *Pump) finishDrains() {
	for i := range p.streams {
		s := &p.streams[i]
		if (s.busy && s.total < s.drainTo) || s.consumed < s.size {
			return
		}
	}
	open := p.drains[:0]
	for _, d := range p.drains {
		if d.targeted {
			p.subscribers.end()
			d.result <- nil
		} else {
			open = append(open, d)
		}
	}
	clear(p.drains[len(open):])
	p.drains = open
}

// slowAfter is how long a call to the log's file system may take before it is
// worth a word.
const slowAfter = 500 * time.Millisecond

// LogError returns why output does not reach the log at present, nil if it does.
func (p *Pump) LogError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since, waits := p.journal.blocked(); waits && time.Since(since) > slowAfter {
		return fmt.Errorf("file system of the log has not answered since %s: %w", since.UTC().Format("15:04:05"), errs.Unavailable)
	}
	return errors.Join(p.fault, p.lost)
}

// Stats counts what a pump of this process has done.
type Stats struct {
	// Read is what the container wrote.
	Read [crilog.Streams]int64
	// Written is how many bytes reached the log, Lines in how many lines.
	Written, Lines int64
	// Discarded is output that had no log to go to, because it was deleted.
	Discarded int64
	// Reopened is how often the log was changed by Reopen.
	Reopened int64
}

// Stats returns the counts.
func (p *Pump) Stats() Stats {
	return Stats{
		Read:      [crilog.Streams]int64{p.read[0].Load(), p.read[1].Load()},
		Written:   p.journal.written.Load(),
		Lines:     p.lines.Load(),
		Discarded: p.journal.discarded.Load(),
		Reopened:  p.journal.reopened.Load(),
	}
}

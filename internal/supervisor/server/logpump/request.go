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

// Reopen switches to the file at the log's path, which it creates if it is absent.
// Complete lines that were read before go to the old file. On error the old file stays
// the log: Unavailable when it cannot be completed, or the directory is missing; Deadline
// when ctx ends first, and then the switch may still happen.
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
	// targeted is true when the streams have their drainTo.
	targeted bool
}

// Drain writes all output in the pipes and in the stages, also a last line without
// newline, and ends the subscriptions. It is for a container whose processes have
// ended: the exit is reported after Drain has returned, so that a client that sees the
// exit finds the log complete. If a process still writes, Drain ends with the output
// that was in the pipes when it was called.
//
// On error (Deadline when ctx ends first) it may be called again. The pump continues to
// try meanwhile.
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

// setTargets sets drainTo of the streams. Only the worker calls it; p.mu is held.
func (p *Pump) setTargets(d *drain) {
	if d.targeted {
		return
	}
	d.targeted = true
	// Not before the streams have their drainTo: a worker in the middle of a turn
	// would take an unfinished line for the last one.
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

// finishDrains answers the drains whose streams have reached drainTo. Only the worker
// calls it; p.mu is held.
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

// slowAfter is how long a call to the log's file system may take before LogError
// reports it.
const slowAfter = 500 * time.Millisecond

// LogError returns why output does not reach the log now, nil if it does.
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
	// Pending is how many bytes were read and are not in the log.
	Pending int64
	// Throttled is how long the container has waited because it wrote more than its rate. A wait counts when it ends;
	// none is long.
	Throttled time.Duration
}

// Stats returns the counts.
func (p *Pump) Stats() Stats {
	return Stats{
		Read:      [crilog.Streams]int64{p.read[0].Load(), p.read[1].Load()},
		Written:   p.journal.written.Load(),
		Lines:     p.lines.Load(),
		Discarded: p.journal.discarded.Load(),
		Reopened:  p.journal.reopened.Load(),
		Pending:   p.pending[0].Load() + p.pending[1].Load(),
		Throttled: time.Duration(p.waited.Load()),
	}
}

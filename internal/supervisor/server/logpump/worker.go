package logpump

import (
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

// A failed write is retried after backoffMin, then after twice as long, up to
// backoffMax.
const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 5 * time.Second
)

// notify starts the worker. The loop calls it when a pipe has data.
func (p *Pump) notify(s crilog.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready[s] = true
	if p.stalled == nil {
		p.start()
	}
}

// start starts a worker unless one runs. p.mu is held.
func (p *Pump) start() {
	if p.working || p.closed {
		return
	}
	p.working = true
	go p.work()
}

// retry ends a stall early. p.mu is held.
func (p *Pump) retry() {
	if p.stalled != nil {
		p.stalled.Stop()
		p.stalled = nil
	}
	p.start()
}

// shutDown closes the pump, or has its worker do so. p.mu is held.
func (p *Pump) shutDown() {
	if p.closed {
		return
	}
	p.closed = true
	close(p.done)
	if p.stalled != nil {
		p.stalled.Stop()
	}
	if !p.working {
		p.release()
	}
}

// release frees everything. p.mu is held, no worker runs, none will.
func (p *Pump) release() {
	closed := fmt.Errorf("log pump was closed: %w", errs.State)
	for _, result := range p.reopens {
		result <- closed
	}
	for _, d := range p.drains {
		d.result <- closed
	}
	p.reopens, p.drains = nil, nil
	p.loop.unregister(p)
	for i := range p.streams {
		p.streams[i].close()
	}
	p.journal.close()
	p.loop.gates.release(p.pod())
	p.subscribers.end()
}

// work copies output until there is none.
func (p *Pump) work() {
	buf := p.loop.workspace(p.maxText)
	defer buf.release()
	for {
		reopens, goOn := p.take()
		if !goOn {
			return
		}
		err := p.turn(buf)
		for _, result := range reopens {
			if err == nil {
				result <- p.journal.reopen()
			} else {
				result <- fmt.Errorf("cannot reopen the log before its old file is complete: %w (%w)", err, errs.Unavailable)
			}
		}
		p.endTurn(err)
	}
}

// take returns the pending requests, or parks the worker if there is nothing to do.
func (p *Pump) take() (reopens []chan error, goOn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.working = false
		p.release()
		return nil, false
	}
	busy := len(p.reopens) > 0 || len(p.drains) > 0
	for i := range p.streams {
		p.streams[i].busy = p.streams[i].busy || p.ready[i]
		p.ready[i] = false
		busy = busy || p.streams[i].busy
	}
	if !busy || p.stalled != nil {
		p.working = false
		return nil, false
	}
	for _, d := range p.drains {
		p.setTargets(d)
	}
	reopens, p.reopens = p.reopens, nil
	return reopens, true
}

// turn does one bounded piece of work.
func (p *Pump) turn(buf *workspace) error {
	if !p.recovered {
		if err := p.journal.recover(); err != nil {
			return err
		}
		p.recovered = true
	}
	if err := p.redo(buf); err != nil {
		return err
	}
	if err := p.journal.finishRotation(); err != nil {
		return err
	}
	for i := range p.streams {
		if s := &p.streams[i]; s.busy {
			if err := p.copyFrom(s, buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// redo repeats an unfinished write of a predecessor or of this process: the same bytes
// at the same offset.
func (p *Pump) redo(buf *workspace) error {
	id, end, ok := p.journal.pending()
	if !ok {
		return nil
	}
	s := &p.streams[id]
	if n := int(end - s.consumed); n > len(buf.raw) {
		buf.enlarge(n)
	}
	raw, err := s.read(buf.raw[:end-s.consumed])
	if err != nil {
		return err
	}
	at := time.Unix(0, p.journal.pos.at)
	buf.out = crilog.NewRenderer(id, at, p.maxText).AppendAll(buf.out[:0], raw)
	if err := p.journal.append(id, end, at, buf.out); err != nil {
		return err
	}
	s.consumed = end
	return nil
}

// copyFrom takes data from one pipe and writes the complete lines.
func (p *Pump) copyFrom(s *stream, buf *workspace) error {
	empty := false
	if waiting := int(s.size - s.consumed); buf.isSmall() && waiting > len(buf.raw)/2 {
		buf.enlarge(waiting)
	}
	if room := len(buf.raw) - int(s.size-s.consumed); room > 0 {
		before := s.size
		var err error
		if empty, err = s.fill(room); err != nil {
			return err
		}
		if buf.isSmall() && s.size-before == int64(room) {
			// There is probably more.
			buf.enlarge(0)
		}
	}
	raw, err := s.read(buf.raw)
	if err != nil {
		return err
	}
	if end := s.consumed + int64(len(raw)); end > s.teed {
		p.subscribers.send(s.id, raw[s.teed-s.consumed:])
		p.read[s.id].Add(end - s.teed)
		s.teed = end
	}
	if err := p.write(s, raw, empty || s.total >= s.drainTo, buf); err != nil {
		return err
	}
	emptied, err := s.trim(empty)
	if emptied {
		p.journal.consume(s.id, 0)
	}
	if err != nil || !empty {
		return err
	}
	return p.rest(s)
}

// write writes the complete lines of raw, the beginning of the unconsumed bytes. With
// last and the container's end it writes everything.
func (p *Pump) write(s *stream, raw []byte, last bool, buf *workspace) error {
	if p.journal.place == nil && len(raw) > 0 {
		s.consumed += int64(len(raw))
		p.journal.consume(s.id, s.consumed)
		return nil
	}
	now := time.Now()
	r := crilog.NewRenderer(s.id, now, p.maxText)
	defer func() { p.lines.Add(int64(r.Lines())) }()
	for len(raw) > 0 {
		out, done := r.AppendComplete(buf.out[:0], raw, buf.limit)
		if done == 0 {
			if !last || !p.ending() {
				return nil
			}
			out, done = r.AppendAll(out, raw), len(raw)
		}
		buf.out = out
		if err := p.journal.append(s.id, s.consumed+int64(done), now, out); err != nil {
			return err
		}
		s.consumed += int64(done)
		raw = raw[done:]
	}
	return nil
}

// rest arms the watch of an empty pipe.
func (p *Pump) rest(s *stream) error {
	if !s.ended {
		if err := p.loop.poller.Arm(s.pipe, s.token); err != nil {
			return err
		}
	}
	s.busy = false
	return nil
}

func (p *Pump) ending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.final
}

// endTurn ends a turn: with a fault the pump stalls for a while.
func (p *Pump) endTurn(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.lost = p.journal.lost
	if err == nil {
		if p.fault != nil {
			p.cfg.Log.Info("the log can be written again")
		}
		p.fault, p.backoff = nil, 0
		p.finishDrains()
		p.throttleNow()
		return
	}
	if p.fault == nil {
		p.cfg.Log.Warn("cannot write the log; its container waits", "error", err)
	}
	p.fault = err
	p.backoff = min(max(2*p.backoff, backoffMin), backoffMax)
	p.stall(p.backoff)
}

// stall stops copying for a while. p.mu is held.
func (p *Pump) stall(pause time.Duration) {
	p.stalled = time.AfterFunc(pause, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.closed {
			p.retry()
		}
	})
}

// throttleNow stalls the pump of a container that writes more than its rate. It does not
// delay the end of a container: the pipes bound the rest of its output. Only the worker
// calls it; p.mu is held.
func (p *Pump) throttleNow() {
	total := p.journal.written.Load() + p.journal.discarded.Load()
	if p.journal.place == nil {
		total = p.read[crilog.Stdout].Load() + p.read[crilog.Stderr].Load()
	}
	pause := p.throttle.wait(total, time.Now())
	if pause == 0 || p.final {
		return
	}
	if !p.throttle.reported {
		p.throttle.reported = true
		p.cfg.Log.Warn("the container writes more than its rate to its log; it waits",
			"bytes per second", p.throttle.rate)
	}
	p.stall(pause)
}

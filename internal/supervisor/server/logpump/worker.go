package logpump

import (
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
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
	p.endWait()
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
	p.endWait()
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
		p.closeRing(&p.streams[i])
		p.streams[i].close()
	}
	p.journal.close()
	p.loop.gates.release(p.pod())
	p.subscribers.end()
}

// work copies output until there is none.
func (p *Pump) work() {
	for {
		reopens, goOn := p.take()
		if !goOn {
			return
		}
		if nap := p.endTurn(p.visit(reopens)); nap > 0 {
			sysfd.Nap(nap)
		} else {
			// Workers of other containers are waiting for a CPU.
			runtime.Gosched()
		}
	}
}

// visit does one turn behind the gate of the log directory, and then answers reopens.
func (p *Pump) visit(reopens []chan error) error {
	err := p.enterGate()
	if err == nil {
		defer p.gate.leave()
		err = p.turn()
	}
	for _, result := range reopens {
		if err == nil {
			result <- p.journal.reopen()
		} else {
			result <- fmt.Errorf("cannot reopen the log before its old file is complete: %w (%w)", err, errs.Unavailable)
		}
	}
	return err
}

// enterGate waits for the other workers in the log directory. Until then the pump has no buffer.
func (p *Pump) enterGate() error {
	p.journal.enter()
	defer p.journal.leave()
	return p.gate.enter(p.done)
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
func (p *Pump) turn() error {
	buf, err := p.loop.workspace(p.maxText, p.done)
	if err != nil {
		return err
	}
	defer buf.release()
	p.took = 0
	for i := range p.streams {
		p.streams[i].empty = false
	}
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
	if err := p.chooseStages(); err != nil {
		return err
	}
	if err := p.copyAll(buf); err != nil {
		return err
	}
	p.flood = !buf.isSmall() && p.took >= spliceMax/2
	return p.endStreams()
}

// chooseStages gives rings to the streams of a container that floods, and takes them from those that
// were not filled for some turns, or were a predecessor's. No write is unfinished.
func (p *Pump) chooseStages() error {
	for i := range p.streams {
		s := &p.streams[i]
		var err error
		switch {
		case s.ring == nil && s.floods() && p.journal.record != nil:
			err = p.enterRing(s)
		case s.ring != nil && (!s.hasSlot || s.idleTurns >= ringIdle || s.idleTurns > 0 && p.ending()):
			err = p.leaveRing(s)
		}
		if err != nil {
			return err
		}
		s.idleTurns++
	}
	return nil
}

// hasRing reports whether a stream has a ring.
func (p *Pump) hasRing() bool { return p.streams[0].ring != nil || p.streams[1].ring != nil }

// endStreams frees what was written, and watches the pipes that are empty.
func (p *Pump) endStreams() error {
	for i := range p.streams {
		s := &p.streams[i]
		if !s.busy {
			continue
		}
		emptied, err := s.trim()
		if emptied {
			p.journal.consume(s.id, 0)
		}
		if err != nil {
			return err
		}
		if s.empty {
			if err := p.rest(s); err != nil {
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
		if err := buf.enlarge(n, p.done); err != nil {
			return err
		}
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

// turnMax is how much one turn takes from the pipes of a container that floods, and turnOut is how
// much it writes, but for its last piece.
const (
	turnMax = 2 << 20
	turnOut = 4 << 20
)

// copyAll copies from all busy pipes in turns. It ends when there is little output left, or when
// this turn has done enough.
func (p *Pump) copyAll(buf *workspace) error {
	if p.flood || p.hasRing() {
		if err := buf.enlarge(0, p.done); err != nil {
			return err
		}
	}
	before := p.journal.written.Load()
	most, piece := int64(turnOut), batchMax
	if rate := p.throttle.rate; rate > 0 {
		// A turn may exceed the rate by its last piece.
		most, piece = min(most, rate/8), int(min(max(rate/64, spliceMax), batchMax))
	}
	for {
		goOn := false
		for i := range p.streams {
			s := &p.streams[i]
			if !s.busy || s.empty {
				continue
			}
			size := piece
			if p.journal.written.Load() == before {
				// Perhaps the log cannot be written.
				size = spliceMax
			}
			more, err := p.copyFrom(s, buf, size)
			if err == nil {
				err = s.punch(trimEvery)
			}
			if err != nil {
				return err
			}
			goOn = goOn || more
		}
		if !goOn || p.took >= turnMax || p.journal.written.Load()-before >= most {
			return nil
		}
	}
}

// copyFrom takes up to most bytes from one pipe and writes the complete lines. It returns true when
// there is probably a lot more.
func (p *Pump) copyFrom(s *stream, buf *workspace, most int) (bool, error) {
	if buf.isSmall() && s.unread() > len(buf.raw)/2 {
		if err := buf.enlarge(s.unread(), p.done); err != nil {
			return false, err
		}
	}
	more := false
	if room := min(len(buf.raw)-s.unread(), most); room > 0 {
		took, err := p.fill(s, room)
		p.took += took
		if err != nil {
			return false, err
		}
		more = took == room || took >= spliceMax/2
		if buf.isSmall() && took == room {
			if err := buf.enlarge(0, p.done); err != nil {
				return false, err
			}
		}
	}
	raw, err := s.read(buf.raw)
	if err != nil {
		return false, err
	}
	if end := s.consumed + int64(len(raw)); end > s.teed {
		p.subscribers.send(s.id, raw[s.teed-s.consumed:])
		p.read[s.id].Add(end - s.teed)
		s.teed = end
	}
	return more, p.write(s, raw, s.empty || s.total >= s.drainTo, buf)
}

// fill takes up to room bytes from the pipe into the ring or the stage, and returns how many.
func (p *Pump) fill(s *stream, room int) (int, error) {
	if s.ring == nil {
		return s.fill(room)
	}
	n, err := p.fillRing(s, room)
	if n > 0 {
		s.idleTurns = 0
	}
	return n, err
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

// endTurn ends a turn: with a fault the pump stalls for a while. It returns how long the worker sleeps
// before the next turn.
func (p *Pump) endTurn(err error) (nap time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0
	}
	p.lost = p.journal.lost
	for i := range p.streams {
		p.pending[i].Store(p.streams[i].size - p.streams[i].consumed)
	}
	if err == nil {
		if p.fault != nil {
			p.cfg.Log.Info("the log can be written again")
		}
		p.fault, p.backoff = nil, 0
		p.finishDrains()
		return p.pause()
	}
	if p.fault == nil {
		p.cfg.Log.Warn("cannot write the log; its container waits", "error", err)
	}
	p.fault = err
	p.backoff = min(max(2*p.backoff, backoffMin), backoffMax)
	p.stall(p.backoff)
	return 0
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

// pause stalls the pump of a container that writes more than its rate, or a lot in small pieces. For
// one with a ring it returns how long the worker sleeps. It does not delay the end of a container:
// the pipes bound the rest of its output. Only the worker calls it; p.mu is held.
func (p *Pump) pause() (nap time.Duration) {
	total := p.journal.written.Load() + p.journal.discarded.Load()
	if p.journal.place == nil {
		total = p.read[crilog.Stdout].Load() + p.read[crilog.Stderr].Load()
	}
	now := time.Now()
	wait := p.throttle.wait(total, now)
	if wait > 0 && !p.final && !p.throttle.reported {
		p.throttle.reported = true
		p.cfg.Log.Warn("the container writes more than its rate to its log; it waits",
			"log", p.logFile(), "bytes per second", p.throttle.rate)
	}
	throttled := wait > 0
	if p.hasRing() {
		nap = p.pace.nap(p.took)
	} else {
		wait = max(wait, p.pace.wait(p.took, p.streams[0].floods() || p.streams[1].floods(), now))
	}
	// A request waits for the next turn.
	if p.final || len(p.reopens) > 0 {
		return 0
	}
	if wait > 0 {
		if throttled {
			p.waitsSince = now
		}
		p.stall(wait)
		return 0
	}
	return nap
}

// endWait counts the wait of a container above its rate, if it waits. p.mu is held.
func (p *Pump) endWait() {
	if !p.waitsSince.IsZero() {
		p.waited.Add(int64(time.Since(p.waitsSince)))
		p.waitsSince = time.Time{}
	}
}

// logFile is the path of the log, by which people find the pod; "" for a container without a log.
func (p *Pump) logFile() string {
	if p.cfg.LogPath == "" {
		return ""
	}
	return filepath.Join(p.cfg.LogDir, p.cfg.LogPath)
}

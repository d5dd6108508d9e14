package logs

import (
	"math"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

// pen renders messages as lines of the log. Parts of a line that have one time are joined, up
// to the longest line. The end of a line waits until it is read: only then is it known whether
// the last part is an F or a P line.
type pen struct {
	maxLine int
	// written is what the rendered lines contain.
	written progress
	// dropped is true when the stream has to deliver output that was read before.
	dropped bool
	waiting [crilog.Streams]struct {
		at  int64
		raw []byte
	}
}

// restart forgets output whose line has not ended. A new stream delivers it again, before
// all that is new, so written.Waiting stays until then.
func (p *pen) restart() {
	p.dropped = p.written.Waiting != 0
	for i := range p.waiting {
		p.waiting[i].raw = p.waiting[i].raw[:0]
	}
}

// add appends to dst the lines that m completes.
func (p *pen) add(dst []byte, m message) []byte {
	w := &p.waiting[m.stream]
	if len(w.raw) > 0 && w.at != m.at {
		dst = p.end(dst, m.stream)
	}
	raw := m.raw
	if len(w.raw) > 0 {
		w.raw = append(w.raw, m.raw...)
		raw = w.raw
	}
	r := crilog.NewRenderer(m.stream, time.Unix(0, m.at), p.maxLine)
	dst, done := r.AppendComplete(dst, raw, math.MaxInt)
	p.wrote(m.stream, m.at, raw[:done])
	w.at = m.at
	// Both may be the same memory.
	w.raw = append(w.raw[:0], raw[done:]...)
	p.noteWaiting()
	return dst
}

// finish appends all output whose line has no end: the container has ended.
func (p *pen) finish(dst []byte) []byte {
	for i := range p.waiting {
		dst = p.end(dst, crilog.Stream(i))
	}
	return dst
}

// end appends what waits of a stream as a P line.
func (p *pen) end(dst []byte, stream crilog.Stream) []byte {
	w := &p.waiting[stream]
	dst = crilog.NewRenderer(stream, time.Unix(0, w.at), p.maxLine).AppendAll(dst, w.raw)
	p.wrote(stream, w.at, w.raw)
	w.raw = w.raw[:0]
	p.noteWaiting()
	return dst
}

func (p *pen) wrote(stream crilog.Stream, at int64, raw []byte) {
	if len(raw) == 0 {
		return
	}
	p.written.Streams[stream].advance(at, len(raw), raw[len(raw)-1] != '\n')
	p.written.Last = at
}

func (p *pen) noteWaiting() {
	oldest := int64(0)
	for i := range p.waiting {
		if w := &p.waiting[i]; len(w.raw) > 0 && (oldest == 0 || w.at < oldest) {
			oldest = w.at
		}
	}
	p.written.Waiting = oldest
}

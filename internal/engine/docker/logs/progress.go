package logs

import (
	"strconv"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

// cursor says how much of one stream is in the log. Within a stream the engine's times never
// decrease, unless somebody sets the clock back, so a time and a number of bytes are a place.
type cursor struct {
	// At is the time of the last output, 0 when there is none. Bytes is how much output with
	// that time is in the log, newlines included.
	At    int64 `json:"at"`
	Bytes int64 `json:"bytes"`
	// High is the latest time that was seen. It differs from At after a clock was set back.
	High int64 `json:"high"`
	// Open is true when the output ends inside of a line.
	Open bool `json:"open,omitempty"`
}

// advance adds raw output, which is not empty, with one time.
func (c *cursor) advance(at int64, size int, open bool) {
	if at != c.At {
		c.At, c.Bytes = at, 0
	}
	c.Bytes += int64(size)
	c.High = max(c.High, at)
	c.Open = open
}

// progress is how much of a container's output is in its log.
type progress struct {
	Streams [crilog.Streams]cursor `json:"streams"`
	// Last is the time of the last line in the log, 0 when there is none.
	Last int64 `json:"last"`
	// Waiting is the time of the oldest output that may have been read and is not in the log,
	// because its line has not ended; 0 when there is none.
	Waiting int64 `json:"waiting,omitempty"`
}

// slack is how much before the last line a new stream begins. The engine takes the times of
// stdout and stderr independently and stores the messages in another order. The difference is
// the time that one waits while the other is stored. It matters to engines before 23.0, which
// filter each message by its time; later ones deliver all that was stored behind the first
// message of the wanted time.
const slack = 10 * time.Second

// since returns the time from which the engine has to deliver messages, as the API takes it,
// "" for all. before is how much older than the last line a new message may be. After the clock
// was set back the times of new messages are unknown.
func (p *progress) since(now time.Time, before time.Duration) string {
	if p.Last == 0 || now.UnixNano() < p.Last {
		return ""
	}
	from := p.Last - int64(before)
	for i := range p.Streams {
		if c := &p.Streams[i]; c.Open {
			from = min(from, c.At)
		}
	}
	if p.Waiting != 0 {
		from = min(from, p.Waiting)
	}
	if from <= 0 {
		return ""
	}
	const second = int64(time.Second)
	fraction := strconv.FormatInt(second+from%second, 10)
	return strconv.FormatInt(from/second, 10) + "." + fraction[1:]
}

// sieve drops the messages of a new stream that are in the log already: in each stream of the
// container all up to the cursor, and none behind it.
type sieve struct {
	seek [crilog.Streams]struct {
		on       bool
		at, high int64
		left     int64
	}
	// missed is true when the place of a cursor was not found.
	missed bool
	// passed is true after a message that was not dropped.
	passed bool
}

func newSieve(p *progress) *sieve {
	s := &sieve{}
	for i := range p.Streams {
		c := &p.Streams[i]
		s.seek[i].on, s.seek[i].at, s.seek[i].high, s.seek[i].left = c.At != 0, c.At, c.High, c.Bytes
	}
	return s
}

// unwritten returns what of a message is not in the log.
func (s *sieve) unwritten(m message) []byte {
	seek := &s.seek[m.stream]
	switch {
	case !seek.on:
	case m.at == seek.at:
		n := min(int64(len(m.raw)), seek.left)
		seek.left -= n
		seek.on = seek.left > 0
		m.raw = m.raw[n:]
	case m.at <= seek.high:
		return nil
	default:
		s.missed = s.missed || seek.left > 0
		seek.on = false
	}
	s.passed = s.passed || len(m.raw) > 0
	return m.raw
}

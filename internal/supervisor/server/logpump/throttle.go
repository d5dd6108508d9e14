package logpump

import "time"

// turnCost is added, in bytes, for each turn of the worker: otherwise a container that
// writes single bytes would use a whole core below its rate. A container that waits has
// more output for the next turn.
const turnCost = 8 << 10

// burst is how many seconds of its rate a container may write at once.
const burst = 10

// throttle limits the rate at which a container writes to its log. A container above
// the limit waits: its pipes fill, and its writes block.
//
// The zero value limits nothing.
type throttle struct {
	// rate is in bytes a second.
	rate int64
	// credit is how many bytes may be written now. It may be negative.
	credit int64
	at     time.Time
	// seen is the pump's count of bytes at the last call.
	seen int64
	// turns is how often wait was called.
	turns int64
	// reported is true once the container's first wait is in the log.
	reported bool
}

// newThrottle begins with a full burst. A rate of 0 limits nothing.
func newThrottle(rate int64) throttle { return throttle{rate: rate, credit: burst * rate} }

// wait returns how long the pump must rest after a turn, now that it has written total
// bytes in all.
func (t *throttle) wait(total int64, now time.Time) time.Duration {
	if t.rate == 0 {
		return 0
	}
	if !t.at.IsZero() {
		earned := int64(now.Sub(t.at).Seconds() * float64(t.rate))
		t.credit = min(t.credit+max(earned, 0), burst*t.rate)
	}
	t.at = now
	t.credit -= total - t.seen + turnCost
	t.seen = total
	t.turns++
	if t.credit >= 0 {
		return 0
	}
	return time.Duration(float64(-t.credit) / float64(t.rate) * float64(time.Second))
}

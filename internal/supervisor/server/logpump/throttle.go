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

const (
	// A container whose output came in paceTurns small turns within paceWindow is left alone for
	// paceRest after each further one. enough is a turn that is not small.
	paceTurns  = 8
	paceWindow = 4 * time.Millisecond
	paceRest   = time.Millisecond
	enough     = 128 << 10
)

// pace lets the output of a container that writes much in small pieces collect in its pipe for a
// moment. Without it the pump would take a piece the size of a line, write it, and find the next
// one: the container and its pump would need more CPU time for waking each other than for the
// output.
//
// The zero value is ready to use.
type pace struct {
	since time.Time // the start of the window
	turns int       // the small turns in it
	// resting is true when the pump rested before this turn.
	resting bool
	// length is that of the last nap.
	length time.Duration
}

// A worker whose streams have rings sleeps for napMin to napMax when it has emptied the pipes: so long
// that the container writes a large piece meanwhile, and so short that it does not fill its pipe.
const (
	napMin = 100 * time.Microsecond
	napMax = paceRest
)

// nap returns how long the worker of a container that floods sleeps after a turn that took so many
// bytes.
func (c *pace) nap(took int) time.Duration {
	switch {
	case took >= turnMax:
		return 0
	case took >= wideRoom/2:
		c.length /= 2
	case took < enough:
		c.length *= 2
	}
	c.length = min(max(c.length, napMin), napMax)
	return c.length
}

// wait returns how long the pump rests after a turn that took so many bytes. With floods it does not
// rest: the container fills its pipe faster than that.
func (c *pace) wait(took int, floods bool, now time.Time) time.Duration {
	rested := c.resting
	c.resting = false
	switch {
	case took == 0:
		if rested {
			c.turns = 0
		}
		return 0
	case took >= enough, floods:
		return 0
	}
	if now.Sub(c.since) > paceWindow && !rested {
		c.since, c.turns = now, 0
	}
	if c.turns++; c.turns < paceTurns {
		return 0
	}
	c.resting = true
	return paceRest
}

package endings

import (
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
)

// Starting holds back what is heard of a container's end while a start of it is under way: that end may
// be one of a failed attempt, which is not an exit. The zero value has no start under way. All methods
// are safe for concurrent use.
type Starting struct {
	mu       sync.Mutex
	underWay bool
	die      *Die
	seen     bool
}

// Begin begins an attempt. What was held of the attempt before is dropped.
func (s *Starting) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay, s.die, s.seen = true, nil, false
}

// UnderWay reports whether a start is under way.
func (s *Starting) UnderWay() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underWay
}

// Hold keeps an end until the start is over. die is nil for an end that was seen in a state. held is
// false when no start is under way.
func (s *Starting) Hold(die *Die) (held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.underWay {
		return false
	}
	if die == nil {
		s.seen = true
	} else {
		s.die = die
	}
	return true
}

// End ends the start. got is the container's state after it, nil when the start failed or the state is
// unknown. ended reports whether an end was heard of that may be the container's: its state says
// whether it is. die is its event, nil when that was not seen.
func (s *Starting) End(got *container.State) (die *Die, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	die, seen := s.die, s.seen
	s.underWay, s.die, s.seen = false, nil, false
	if got == nil {
		return nil, seen || die != nil
	}
	if started, err := time.Parse(time.RFC3339Nano, got.StartedAt); die != nil && err == nil && started.After(die.At) {
		die = nil // of an earlier attempt; the event of this one follows
	}
	return die, seen || die != nil // also of a container that ran when its state was read
}

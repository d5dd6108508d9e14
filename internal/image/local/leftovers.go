package local

import (
	"context"
	"time"
)

// leftoverPause is the time between two looks at the leftovers of failed pulls. A client that tries again at once finds them
// also where the disk is short of space.
const leftoverPause = time.Minute

// leftoversChanged is called after a pull that may have a leftover.
func (s *Images) leftoversChanged() {
	select {
	case s.leftoverWake <- struct{}{}:
	default: // a look is due already
	}
}

// tidyLeftovers drops leftovers when they expire, or when the disk becomes short of space, until ctx ends. It sleeps while
// there are none.
func (s *Images) tidyLeftovers(ctx context.Context) {
	for {
		select {
		case <-s.leftoverWake:
		case <-ctx.Done():
			return
		}
		for left := true; left; {
			select {
			case <-time.After(leftoverPause):
			case <-ctx.Done():
				return
			}
			var dropped bool
			if dropped, left = s.store.TidyLeftovers(ctx, time.Now()); dropped {
				s.changed()
			}
		}
	}
}

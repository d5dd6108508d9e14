package local

import (
	"context"
	"time"
)

// keptPause is the time between two looks at what failed pulls have left. A client that tries again at once finds it also
// where the disk is short of space.
const keptPause = time.Minute

// kept is called after what may have left something for the next pull.
func (s *Images) kept() {
	select {
	case s.keptWake <- struct{}{}:
	default: // a look is due already
	}
}

// tidyKept removes what failed pulls have left when it expires, or when the disk becomes short of space, until ctx ends. It
// sleeps while there is nothing left.
func (s *Images) tidyKept(ctx context.Context) {
	for {
		select {
		case <-s.keptWake:
		case <-ctx.Done():
			return
		}
		for left := true; left; {
			select {
			case <-time.After(keptPause):
			case <-ctx.Done():
				return
			}
			var dropped bool
			if dropped, left = s.store.TidyKept(ctx, time.Now()); dropped {
				s.changed()
			}
		}
	}
}

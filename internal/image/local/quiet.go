package local

import (
	"context"
	"time"
)

// quietPause is the time between a change of the store and the look whether its databases are quiet.
const quietPause = 2 * time.Second

// changed is called after what may have written to the databases. Once they are quiet they are noted as intact, so
// that the start after a kill need not read them; see repair.Repairer.Quiet. A lost image may be back.
func (s *Images) changed() {
	s.store.SettleLost()
	select {
	case s.wake <- struct{}{}:
	default: // a look is due already
	}
}

// noteQuiet notes the databases as intact whenever they have become quiet, until ctx ends.
func (s *Images) noteQuiet(ctx context.Context) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		for settled := false; !settled; {
			select {
			case <-time.After(quietPause):
			case <-ctx.Done():
				return
			}
			var err error
			if settled, err = s.repair.Quiet(); err != nil {
				s.log.Debug("cannot note that the databases of the image store are intact; a start after a kill checks them", "error", err)
				break
			}
		}
	}
}

package logpump

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// podBacklogMax is the memory that the backlogs of all subscribers of a pod may
// take together.
const podBacklogMax = 24 << 20

// budget bounds the memory of the backlogs of one pod's subscribers. When it is
// exceeded, it drops the subscriber with the largest backlog, so that a client which
// does not read never ends the stream of another one.
type budget struct {
	used atomic.Int64

	// mu is taken inside of Subscription.mu, and never the other way round.
	mu   sync.Mutex
	subs map[*Subscription]bool
}

func (b *budget) join(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = make(map[*Subscription]bool)
	}
	b.subs[s] = true
}

func (b *budget) leave(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, s)
}

// enforce drops subscribers until their backlogs fit into the budget.
func (b *budget) enforce() {
	for {
		used := b.used.Load()
		if used <= podBacklogMax {
			return
		}
		largest := b.largest()
		if largest == nil {
			return
		}
		largest.dropFor(used)
	}
}

// largest returns the subscriber that keeps the most memory, nil if none does.
func (b *budget) largest() *Subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	var largest *Subscription
	for _, s := range slices.Collect(maps.Keys(b.subs)) {
		if cost := s.cost.Load(); cost > 0 && (largest == nil || cost > largest.cost.Load()) {
			largest = s
		}
	}
	return largest
}

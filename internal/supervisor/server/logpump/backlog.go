package logpump

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berthrun/berth/internal/crilog"
)

const (
	// chunkMax is how long a chunk grows before output goes into the next one.
	chunkMax = 32 << 10
	// chunkMin is the capacity of a new chunk: output in single bytes does not reallocate
	// its chunk at each of them.
	chunkMin = 512
	// chunkOverhead is what a chunk costs beside its bytes: its entry in the queue,
	// which may have grown to twice its length, and the allocator's rounding.
	chunkOverhead = 128
)

// chunk is output of one stream. Its bytes belong to its backlog alone.
type chunk struct {
	stream crilog.Stream
	data   []byte
}

func (c *chunk) cost() int { return cap(c.data) + chunkOverhead }

// backlog is output that waits for a reader, in order. It counts the memory that it
// takes, which is more than its bytes: a container chooses how they are cut.
type backlog struct {
	chunks []chunk
	// cost is the memory that the chunks take, in bytes.
	cost int
}

// add appends a copy of data. It joins the last chunk where that is of the same
// stream and has room.
func (b *backlog) add(stream crilog.Stream, data []byte) {
	if len(data) == 0 {
		return
	}
	if n := len(b.chunks); n > 0 {
		last := &b.chunks[n-1]
		if last.stream == stream && len(last.data)+len(data) <= chunkMax {
			b.cost -= last.cost()
			last.data = append(last.data, data...)
			b.cost += last.cost()
			return
		}
	}
	next := chunk{stream: stream, data: make([]byte, 0, max(len(data), chunkMin))}
	next.data = append(next.data, data...)
	b.chunks = append(b.chunks, next)
	b.cost += next.cost()
}

// next removes the first chunk and returns it; false when there is none.
func (b *backlog) next() (chunk, bool) {
	if len(b.chunks) == 0 {
		return chunk{}, false
	}
	first := b.chunks[0]
	b.cost -= first.cost()
	b.chunks[0] = chunk{}
	if b.chunks = b.chunks[1:]; len(b.chunks) == 0 {
		b.chunks = nil
	}
	return first, true
}

// clear drops everything.
func (b *backlog) clear() { *b = backlog{} }

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

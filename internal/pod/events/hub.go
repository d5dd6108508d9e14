// Package events delivers the events of sandboxes and containers to subscribers, in
// order.
//
// It owns the order, the stamps and the subscribers' queues. It does not create events:
// its callers publish complete ones.
package events

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Event is one event as CRI has it. It must not change once it is published.
type Event = runtimeapi.ContainerEventResponse

// maxQueue is how many events may wait for one subscriber: several for every
// container of the fullest node. A slower subscriber is cut off. When it subscribes again, it
// gets the present state.
const maxQueue = 16384

// Hub orders events. Its stamps (Event.CreatedAt) are their sequence numbers:
// nanoseconds since 1970, each larger than all before it, whatever the clock does.
type Hub struct {
	mu          sync.Mutex
	last        int64
	closed      bool
	subscribers map[*Subscription]struct{}
	published   uint64
	dropped     uint64
	limit       int
}

// newest bounds the time after which a Hub begins, in the year 2225: beyond it stamps would
// overflow.
const newest = math.MaxInt64 - 1<<60

// NewHub makes a Hub whose stamps are larger than after, the newest time in any
// record. An impossible time counts as the newest possible one.
func NewHub(after int64) *Hub {
	return &Hub{last: min(after, newest), subscribers: map[*Subscription]struct{}{}, limit: maxQueue}
}

// Counters count events and subscribers.
type Counters struct {
	// Published counts events since the daemon's start; Dropped those that a
	// subscriber did not get, because it was too slow.
	Published uint64 `json:"published"`
	Dropped   uint64 `json:"dropped"`
	// Last is the stamp of the newest event.
	Last        int64 `json:"last"`
	Subscribers int   `json:"subscribers"`
}

// Counters returns the counters.
func (h *Hub) Counters() Counters {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Counters{Published: h.published, Dropped: h.dropped, Last: h.last, Subscribers: len(h.subscribers)}
}

// Stamp returns a stamp for a status that is about to be read: no event that is
// stamped later can be missing from it.
func (h *Hub) Stamp() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = max(time.Now().UnixNano(), h.last)
	return h.last
}

// next is the stamp of the next event. The caller holds the lock.
func (h *Hub) next() int64 {
	h.last = max(time.Now().UnixNano(), h.last+1)
	return h.last
}

// Publish stamps an event and queues it for every subscriber. fill completes the
// event under the lock that orders events, so that the state that it reads is never
// older than that of an earlier event. Without subscribers Publish does not call fill.
func (h *Hub) Publish(event *Event, fill func(*Event)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	event.CreatedAt = h.next()
	h.published++
	if len(h.subscribers) == 0 {
		return
	}
	fill(event)
	for s := range h.subscribers {
		h.hand(s, event)
	}
}

func (h *Hub) hand(s *Subscription, event *Event) {
	if len(s.queue) >= h.limit {
		h.dropped += uint64(len(s.queue)) + 1
		s.queue = nil
		h.end(s, fmt.Errorf("the subscriber reads events too slowly; subscribe again: %w", errs.Exhausted))
		return
	}
	s.queue = append(s.queue, event)
	s.wake()
}

// Subscribe makes a subscription that begins with the events that present returns, the
// current state of each object, and continues with all later events, without a gap.
// Unavailable once the Hub is closed.
func (h *Hub) Subscribe(present func() []*Event) (*Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errClosed()
	}
	s := &Subscription{hub: h, news: make(chan struct{}, 1), queue: present()}
	for _, event := range s.queue {
		event.CreatedAt = h.next()
	}
	h.subscribers[s] = struct{}{}
	s.wake()
	return s, nil
}

// Close ends every subscription once its queued events are read.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subscribers {
		h.end(s, errClosed())
	}
}

func errClosed() error { return fmt.Errorf("berth stops: %w", errs.Unavailable) }

// end ends a subscription with an error. The caller holds the lock.
func (h *Hub) end(s *Subscription, err error) {
	delete(h.subscribers, s)
	s.err = err
	s.wake()
}

// Subscription is one reader of events.
type Subscription struct {
	hub  *Hub
	news chan struct{}
	// queue and err are guarded by the Hub's lock.
	queue []*Event
	err   error
}

func (s *Subscription) wake() {
	select {
	case s.news <- struct{}{}:
	default: // it has been woken
	}
}

// Next waits for events and returns all that wait, in order. It fails when ctx
// ends, the Hub is closed, or the reader was too slow.
func (s *Subscription) Next(ctx context.Context) ([]*Event, error) {
	for {
		s.hub.mu.Lock()
		queue, err := s.queue, s.err
		s.queue = nil
		s.hub.mu.Unlock()
		if len(queue) > 0 {
			return queue, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Cancel ends the subscription.
func (s *Subscription) Cancel() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subscribers, s)
	s.queue = nil
}

package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func nothing() []*Event { return nil }

func read(t *testing.T, s *Subscription, count int) []*Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all []*Event
	for len(all) < count {
		events, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("after %d of %d events: %v", len(all), count, err)
		}
		all = append(all, events...)
	}
	return all
}

func mustSubscribe(t *testing.T, h *Hub, present func() []*Event) *Subscription {
	t.Helper()
	s, err := h.Subscribe(present)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSubscribersReadTheSameOrder: with many publishers, all subscribers read the same order.
func TestSubscribersReadTheSameOrder(t *testing.T) {
	const publishers, each = 8, 200
	h := NewHub(0)
	var subs []*Subscription
	for range 3 {
		subs = append(subs, mustSubscribe(t, h, nothing))
	}
	var group sync.WaitGroup
	for p := range publishers {
		group.Go(func() {
			for i := range each {
				h.Publish(&Event{ContainerId: fmt.Sprintf("%d/%d", p, i)}, func(*Event) {})
			}
		})
	}
	var orders [][]string
	for _, s := range subs {
		var order []string
		last := int64(0)
		for _, e := range read(t, s, publishers*each) {
			if e.CreatedAt <= last {
				t.Fatalf("stamp %d after %d", e.CreatedAt, last)
			}
			last = e.CreatedAt
			order = append(order, e.ContainerId)
		}
		orders = append(orders, order)
	}
	group.Wait()
	for _, order := range orders[1:] {
		if diff := cmp.Diff(orders[0], order); diff != "" {
			t.Fatalf("two subscribers, two orders:\n%s", diff)
		}
	}
	if c := h.Counters(); c.Dropped != 0 || c.Published != publishers*each || c.Subscribers != 3 {
		t.Errorf("counters %+v", c)
	}
}

// TestSubscriptionBeginsWithThePresent: a subscription begins with the current state. Later events
// have later timestamps.
func TestSubscriptionBeginsWithThePresent(t *testing.T) {
	future := time.Now().Add(time.Hour).UnixNano()
	h := NewHub(future)
	s := mustSubscribe(t, h, func() []*Event { return []*Event{{ContainerId: "a"}, {ContainerId: "b"}} })
	if stamp := h.Stamp(); stamp <= future {
		t.Errorf("stamp %d is not after %d", stamp, future)
	}
	h.Publish(&Event{ContainerId: "c"}, func(e *Event) { e.ContainerId = "filled" })
	last := future
	var ids []string
	for _, e := range read(t, s, 3) {
		if e.CreatedAt <= last {
			t.Errorf("%s is stamped %d, not after %d", e.ContainerId, e.CreatedAt, last)
		}
		last = e.CreatedAt
		ids = append(ids, e.ContainerId)
	}
	if diff := cmp.Diff([]string{"a", "b", "filled"}, ids); diff != "" {
		t.Error(diff)
	}
}

func TestOnlySlowSubscribersAreDropped(t *testing.T) {
	h := NewHub(0)
	h.limit = 3
	slow, quick := mustSubscribe(t, h, nothing), mustSubscribe(t, h, nothing)
	for range 4 {
		h.Publish(&Event{ContainerId: "x"}, func(*Event) {})
		read(t, quick, 1)
	}
	if _, err := slow.Next(t.Context()); !errors.Is(err, errs.Exhausted) {
		t.Errorf("the slow one got %v, want kind Exhausted", err)
	}
	if c := h.Counters(); c.Dropped != 4 || c.Subscribers != 1 {
		t.Errorf("counters %+v, want 4 dropped and 1 subscriber left", c)
	}
}

func TestCloseDeliversQueuedEvents(t *testing.T) {
	h := NewHub(0)
	s := mustSubscribe(t, h, nothing)
	h.Publish(&Event{ContainerId: "x"}, func(*Event) {})
	h.Close()
	read(t, s, 1)
	if _, err := s.Next(t.Context()); !errors.Is(err, errs.Unavailable) {
		t.Errorf("got %v, want kind Unavailable", err)
	}
	if _, err := h.Subscribe(nothing); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a new one got %v, want kind Unavailable", err)
	}
	gone := mustSubscribe(t, NewHub(0), nothing)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := gone.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
	gone.Cancel()
}

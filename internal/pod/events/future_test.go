package events

import (
	"math"
	"testing"
)

// After a record with any time, even a wrong one, timestamps increase.
func TestStampsAlwaysGrow(t *testing.T) {
	for _, after := range []int64{math.MinInt64, 0, 4e18, math.MaxInt64 - 1, math.MaxInt64} {
		h := NewHub(after)
		first := h.Stamp()
		sub, err := h.Subscribe(func() []*Event { return []*Event{{}, {}} })
		if err != nil {
			t.Fatal(err)
		}
		last := h.Stamp()
		h.Publish(&Event{}, func(*Event) {})
		h.Publish(&Event{}, func(*Event) {})
		got, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 4 || got[1].CreatedAt > last || got[2].CreatedAt <= last || got[3].CreatedAt <= got[2].CreatedAt || got[0].CreatedAt <= first {
			t.Errorf("after %d: stamps %d and %d around events %v", after, first, last, got)
		}
	}
}

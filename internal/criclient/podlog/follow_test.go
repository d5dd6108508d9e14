package podlog

import (
	"errors"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestParseSince: durations and times as docker takes them.
func TestParseSince(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "42m": now.Add(-42 * time.Minute), "2026-01-02T03:04:05Z": now, "2026-01-02T03:04:05": now,
		"2026-01-02": time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), "1767323045": now, "1767323045.5": now.Add(500 * time.Millisecond),
	} {
		if got, err := ParseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, want %v: %v", text, got, want, err)
		}
	}
	if _, err := ParseSince("yesterday", now); !errors.Is(err, errs.Invalid) {
		t.Errorf("yesterday: %v", err)
	}
}

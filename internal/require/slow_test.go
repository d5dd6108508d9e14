package require_test

import (
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

func TestPatienceGrowsOnSlowMachines(t *testing.T) {
	for factor, want := range map[string]time.Duration{
		"": time.Second, "10": 10 * time.Second, "2.5": 2500 * time.Millisecond, "0.1": time.Second, "much": time.Second,
	} {
		t.Setenv("BERTH_TEST_SLOW", factor)
		if got := require.Patience(time.Second); got != want {
			t.Errorf("BERTH_TEST_SLOW=%q: a second becomes %v, want %v", factor, got, want)
		}
	}
}

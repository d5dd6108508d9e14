package network_test

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network"
)

// A fault in the work for one sandbox ends neither the daemon nor the sandbox's turns.
func TestPanicEndsOneTurn(t *testing.T) {
	var turns network.Turns
	err := turns.Take(t.Context(), "one", "work", func() error { panic("oh no") })
	if err == nil || !strings.Contains(err.Error(), "oh no") || !strings.Contains(err.Error(), "one") {
		t.Errorf("error %v does not name the fault and the sandbox", err)
	}
	if err := turns.Take(t.Context(), "one", "work", func() error { return nil }); err != nil {
		t.Errorf("the next turn: %v", err)
	}
}

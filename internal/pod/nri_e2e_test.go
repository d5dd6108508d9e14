//go:build integration && e2e

package pod_test

import (
	"testing"

	"github.com/berthrun/berth/internal/nri/nritest"
)

// TestNRIHangs: TestNRISilence for the hangs at the events that it leaves out.
func TestNRIHangs(t *testing.T) {
	for _, event := range otherHangEvents() {
		t.Run(event, func(t *testing.T) {
			t.Parallel()
			goesOn(t, event, func(*nritest.Plugin) { <-t.Context().Done() })
		})
	}
}

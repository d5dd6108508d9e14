//go:build integration

package integration

import (
	"testing"

	"github.com/berthrun/berth/test/harness/leak"
)

// TestSessionsLeaveNothing is the short run; test/e2e has the long one.
func TestSessionsLeaveNothing(t *testing.T) {
	leak.RunSessions(t, leak.SessionOptions{Sessions: 120, Parallel: 8, MemoryKiB: 16 << 10})
}

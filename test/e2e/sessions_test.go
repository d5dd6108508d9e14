//go:build e2e

package e2e

import (
	"testing"

	"github.com/berthrun/berth/test/harness/leak"
)

// A hundred thousand execs, attachments and forwarded ports: then everything is as before, and the
// memory of berth's processes does not grow.
func TestSessionsLeaveNothing(t *testing.T) {
	leak.RunSessions(t, leak.SessionOptions{Sessions: 100_000, Parallel: 16, MemoryKiB: 8 << 10})
}

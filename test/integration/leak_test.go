//go:build integration

package integration

import (
	"testing"

	"github.com/berthrun/berth/test/harness/leak"
)

// TestLeak is the short run of the leak test. test/e2e has the long one, which is long enough to
// check memory.
func TestLeak(t *testing.T) {
	leak.Run(t, leak.Options{Pods: 100, Parallel: 10, Early: 50, MemoryKiB: 16 << 10})
}

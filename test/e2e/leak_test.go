//go:build e2e

package e2e

import (
	"testing"

	"github.com/berthrun/berth/test/harness/leak"
)

// A thousand pods come and go, ten at a time: everything is as it was before, and the
// memory of berth's processes as it was after two hundred.
func TestLeak(t *testing.T) {
	leak.Run(t, leak.Options{Pods: 1000, Parallel: 10, Early: 200, MemoryKiB: 2 << 10})
}

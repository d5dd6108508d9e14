//go:build e2e

package e2e

import (
	"testing"

	"github.com/berthrun/berth/test/harness/leak"
)

// A thousand pods are created and removed, ten at a time. Then everything is as before, and the
// memory of berth's processes as after two hundred pods.
func TestLeak(t *testing.T) {
	leak.Run(t, leak.Options{Pods: 1000, Parallel: 10, Early: 200, MemoryKiB: 2 << 10})
}

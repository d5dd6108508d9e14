package unpack

import (
	"math"
	"testing"
)

// TestCacheOfLargeLayers: the children under way have no more page cache than the runner may give, whatever size a manifest claims.
func TestCacheOfLargeLayers(t *testing.T) {
	const mib = 1 << 20
	r := &Runner{Cache: 1000 * mib}
	for _, step := range []struct{ layer, want int64 }{
		{0, 0}, {-1, 0}, {64 * mib, 0}, {100 * mib, 400 * mib}, {64 * mib, 0}, {math.MaxInt64, 600 * mib}, {1000 * mib, 0},
	} {
		if got := r.takeCache(step.layer); got != step.want {
			t.Errorf("a layer of %d bytes gets %d, want %d", step.layer, got, step.want)
		}
	}
	r.leaveCache(600 * mib)
	if got := r.takeCache(1000 * mib); got != 600*mib {
		t.Errorf("after the end of a child, a layer gets %d", got)
	}
}

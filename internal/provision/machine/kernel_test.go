package machine

import (
	"slices"
	"testing"
)

// TestSwaps: swap in compressed memory counts: a kubelet does not start with it.
func TestSwaps(t *testing.T) {
	const text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n" +
		"/dev/zram0                              partition\t8388604\t\t0\t\t100\n/swapfile                               file\t\t1024\t\t0\t\t-2\n"
	if got := swaps(text); !slices.Equal(got, []string{"/dev/zram0", "/swapfile"}) {
		t.Errorf("swap is %q", got)
	}
	if got := swaps("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"); len(got) > 0 {
		t.Errorf("without swap it is %q", got)
	}
}

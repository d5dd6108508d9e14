//go:build integration && e2e

package local

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestFlippedBitsAnywhere flips bits anywhere in the databases. BERTH_FLIPS is how many of each, 100 unless it says otherwise,
// BERTH_SEED where they begin.
func TestFlippedBitsAnywhere(t *testing.T) {
	f := newDamagedStore(t)
	f.compact(t)
	n, seed := 100, uint64(os.Getpid())
	if text := os.Getenv("BERTH_FLIPS"); text != "" {
		n, _ = strconv.Atoi(text)
	}
	if text := os.Getenv("BERTH_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	var cases []damageCase
	for object, path := range f.databases {
		data, err := os.ReadFile(filepath.Join(f.root, path))
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			at, bit := random.IntN(len(data)), uint(random.IntN(8))
			for data[at] == 0 { // mostly not in use
				at = random.IntN(len(data))
			}
			around := data[max(0, at-12):min(len(data), at+12)]
			cases = append(cases, damageCase{object: object, path: path, damage: fmt.Sprintf("bit %d flipped at %d, in %q", bit, at, around), change: flipAt(at, bit)})
		}
	}
	damageTable(t, f, cases)
}

//go:build integration

package background

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestLargeTreesDoNotDelaySmallOnes: small trees are removed while a large tree, which is first in
// the order, still exists.
func TestLargeTreesDoNotDelaySmallOnes(t *testing.T) {
	dir := t.TempDir()
	trash := NewTrash(dir, NewGroup(), slog.New(slog.DiscardHandler))
	trash.Slice = 2 * time.Millisecond
	trees := map[string]int{"aaa-large": 10_000}
	for i := range 10 {
		trees[fmt.Sprint("small", i)] = 10
	}
	for name, files := range trees {
		if err := imagetest.ManyFiles(filepath.Join(dir, name), files); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var removal sync.WaitGroup
	removal.Go(func() { trash.Empty(ctx) })
	for left := 10; left > 0; {
		small, err := filepath.Glob(filepath.Join(dir, "small*"))
		if err != nil {
			t.Fatal(err)
		}
		left = len(small)
	}
	stop()
	removal.Wait()
	if _, err := os.Stat(filepath.Join(dir, "aaa-large")); err != nil {
		t.Errorf("the small trees have waited for the large one: %v", err)
	}
}

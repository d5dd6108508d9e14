//go:build integration

package local

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

// BenchmarkPrepareRelease mounts and unmounts a container's root filesystem, on an image with six
// layers.
func BenchmarkPrepareRelease(b *testing.B) {
	require.Root(b)
	ctx := context.Background()
	dir := b.TempDir()
	s, err := Open(ctx, Config{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"),
		UnpackHelper: helper, CgroupParent: "/berth-image-test",
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	spec := imagetest.Spec{Name: "bench:1"}
	for i := range 6 {
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: fmt.Sprint("f", i)}})
	}
	list, err := s.Import(ctx, archiveOf(b, spec), "", false, nil)
	if err != nil {
		b.Fatal(err)
	}
	var prepare, release time.Duration
	b.ResetTimer()
	for i := range b.N {
		key := fmt.Sprint("c", i)
		start := time.Now()
		if _, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: list[0].ID}); err != nil {
			b.Fatal(err)
		}
		prepared := time.Now()
		if err := s.Release(ctx, key); err != nil {
			b.Fatal(err)
		}
		prepare += prepared.Sub(start)
		release += time.Since(prepared)
	}
	b.ReportMetric(float64(prepare.Microseconds())/float64(b.N), "prepare-us/op")
	b.ReportMetric(float64(release.Microseconds())/float64(b.N), "release-us/op")
}

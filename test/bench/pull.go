package main

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullRounds is how often each runtime pulls the image.
const pullRounds = 3

// pulls times the pull of a large image from the loopback registry.
func pulls(ctx context.Context, o options, peers []*peer, r *registry) (*table, error) {
	t := &table{Title: fmt.Sprintf("Pull of %d MiB, 6 gzip layers (median of %d)", o.pullMiB, pullRounds)}
	for range pullRounds {
		for _, p := range peers {
			begin := time.Now()
			if err := p.pull(ctx, r.image("big:1")); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			t.median(p.name, "pull", "s", time.Since(begin).Seconds())
			_, err := p.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: r.image("big:1")}})
			if err != nil {
				return nil, fmt.Errorf("%s: RemoveImage: %w", p.name, err)
			}
		}
	}
	return t, nil
}

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
			if err := p.removeImage(ctx, r.image("big:1")); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return t, nil
}

// removeImage removes an image by its id, as a kubelet does: cri-dockerd keeps an image that is
// removed by its name.
func (p *peer) removeImage(ctx context.Context, name string) error {
	status, err := p.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return fmt.Errorf("ImageStatus: %w", err)
	}
	if status.Image == nil {
		return fmt.Errorf("image %s is missing after its pull", name)
	}
	_, err = p.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: status.Image.Id}})
	if err != nil {
		return fmt.Errorf("RemoveImage: %w", err)
	}
	return nil
}

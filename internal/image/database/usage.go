package database

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/image"
)

// Usage is what images take on disk. It counts blobs, unfinished content and unpacked layers as
// the databases know them, and reads no directory of a layer.
func (d *DB) Usage(ctx context.Context) (image.Usage, error) {
	ctx = WithNamespace(ctx)
	usage := image.Usage{Mountpoint: d.Root, At: time.Now()}
	err := d.Content.Walk(ctx, func(info content.Info) error {
		if info.Labels[preloadedLabel] != "" {
			return nil // a link; so are its layers, and no file
		}
		usage.Bytes += info.Size
		usage.Inodes++
		return nil
	})
	if err != nil {
		return image.Usage{}, fmt.Errorf("cannot add up image content: %w", err)
	}
	unfinished, err := d.UnfinishedBytes()
	if err != nil {
		return image.Usage{}, err
	}
	usage.Bytes += unfinished
	// The snapshotter's transaction must not be open while it is asked again.
	var names []string
	err = d.Snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			names = append(names, info.Name)
		}
		return nil
	})
	if err != nil {
		return image.Usage{}, fmt.Errorf("cannot list snapshots: %w", err)
	}
	for _, name := range names {
		used, err := d.Snapshots.Usage(ctx, name)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return image.Usage{}, fmt.Errorf("cannot get the size of snapshot %s: %w", name, err)
		}
		usage.Bytes += used.Size
		usage.Inodes += used.Inodes
	}
	return usage, nil
}

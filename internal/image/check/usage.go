package check

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/store"
)

// sizes are what the databases know of the files: the bytes of each blob by digest, and of each
// layer by chain. It reads no directory of a layer.
type sizes struct{ blobs, layers map[string]int64 }

func (c *Checker) sizes(ctx context.Context) (sizes, error) {
	s := sizes{map[string]int64{}, map[string]int64{}}
	err := c.DB.Content.Walk(ctx, func(info content.Info) error {
		if database.PreloadedFrom(info) == "" {
			s.blobs[info.Digest.String()] = info.Size
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("cannot list content: %w", err)
	}
	// The snapshotter's transaction must not be open while it is asked again.
	err = c.DB.Snapshots.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			s.layers[info.Name] = 0
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("cannot list layers: %w", err)
	}
	for chain := range s.layers {
		used, err := c.DB.Snapshots.Usage(ctx, chain)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return s, fmt.Errorf("cannot get the size of layer %s: %w", chain, err)
		}
		s.layers[chain] = used.Size
	}
	for chain, bytes := range c.Snapshotters.OwnSizes() { // no chain of theirs is one of those
		s.layers[chain] = bytes
	}
	return s, nil
}

// DiskUse implements image.Auditor.
func (c *Checker) DiskUse(ctx context.Context) (*image.DiskUse, error) {
	ctx = database.WithNamespace(ctx)
	images, err := c.Store.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	s, err := c.sizes(ctx)
	if err != nil {
		return nil, err
	}
	use := &image.DiskUse{Images: []image.ImageUse{}, Kept: []image.LayerUse{}}
	if use.Unfinished, err = c.DB.UnfinishedBytes(); err != nil {
		return nil, err
	}
	use.Total = use.Unfinished
	leftovers, _, err := c.DB.LeftoverBytes(ctx)
	if err != nil {
		return nil, err
	}
	use.Unfinished += leftovers // which are among the blobs
	for _, bytes := range s.blobs {
		use.Total += bytes
	}
	for _, bytes := range s.layers {
		use.Total += bytes
	}
	counts := map[string]int{}
	for _, img := range images {
		for _, object := range objectsOf(img) {
			counts[object]++
		}
	}
	users := c.Rootfs.Users()
	for _, img := range images {
		use.Images = append(use.Images, useOf(img, s, counts, users))
	}
	if use.Kept, err = c.kept(ctx, s, counts, users); err != nil {
		return nil, err
	}
	replaced, total := c.Rootfs.Replaced()
	use.Kept = append(use.Kept, replaced...)
	use.Total += total.Bytes
	return use, nil
}

// objectsOf lists the blobs and layers of an image, each once.
func objectsOf(img store.Stored) []string {
	t := img.Tree
	if t == nil {
		return nil
	}
	objects := append(t.Chains(), snapshotters.Chains(t.Layers)...) // the last of the latter is what containers of a snapshotter use
	for _, desc := range append(append([]imagespec.Descriptor{t.Target, t.Manifest, t.Config}, t.Indexes...), t.Layers...) {
		objects = append(objects, desc.Digest.String())
	}
	slices.Sort(objects)
	return slices.Compact(objects)
}

func useOf(img store.Stored, s sizes, counts map[string]int, users map[string][]string) image.ImageUse {
	use := image.ImageUse{ID: img.ID, Names: append([]string{}, img.Names()...), Containers: []string{}}
	chains := map[string]bool{}
	if img.Tree != nil {
		for _, chain := range append(img.Tree.Chains(), snapshotters.Chains(img.Tree.Layers)...) {
			chains[chain] = true
		}
		use.Containers = append(append(use.Containers, users[img.Tree.TopChain()]...), users[snapshotters.TopChain(img.Tree.Layers)]...)
	}
	for _, object := range objectsOf(img) {
		bytes := s.blobs[object]
		if chains[object] {
			// The chain id of a lowest layer without compression is the digest of its blob.
			use.Layers += s.layers[object]
			use.Content += bytes
			bytes += s.layers[object]
		} else {
			use.Content += bytes
		}
		if counts[object] > 1 {
			use.Shared += bytes
		} else {
			use.Own += bytes
		}
	}
	return use
}

// kept lists what containers use of images that were removed.
func (c *Checker) kept(ctx context.Context, s sizes, counts map[string]int, users map[string][]string) ([]image.LayerUse, error) {
	all := []image.LayerUse{}
	for top, keys := range users {
		if top == "" || counts[top] > 0 {
			continue
		}
		kept := image.LayerUse{Chain: top, Containers: keys}
		for chain := top; chain != "" && counts[chain] == 0; {
			kept.Bytes += s.layers[chain]
			_, parent, err := c.DB.LayerFiles(ctx, chain)
			if errdefs.IsNotFound(err) {
				break
			}
			if err != nil {
				return nil, err
			}
			chain = parent
		}
		all = append(all, kept)
	}
	slices.SortFunc(all, func(a, b image.LayerUse) int { return int(b.Bytes - a.Bytes) })
	return all, nil
}

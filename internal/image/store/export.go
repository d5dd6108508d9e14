package store

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
)

// contentResource is how leases call blobs.
const contentResource = "content"

// Export implements image.Store. An archive has, of an image for several platforms, what this
// host has of it.
func (s *Store) Export(ctx context.Context, refs []string, to io.Writer) error {
	if len(refs) == 0 {
		return fmt.Errorf("cannot export: no image is named: %w", errs.Invalid)
	}
	ctx, end, err := s.background.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	// Removing an image meanwhile does not truncate the archive.
	return s.db.WithLease(ctx, func(ctx context.Context) error {
		var manifests []archive.ExportOpt
		for _, ref := range refs {
			manifest, names, err := s.hold(ctx, ref)
			if err != nil {
				return fmt.Errorf("cannot export %s: %w", ref, err)
			}
			manifests = append(manifests, archive.WithManifest(manifest, names...))
		}
		if err := archive.Export(ctx, s.db.Compared(), to, manifests...); err != nil {
			return fmt.Errorf("cannot export images: %w", s.noteDamage(err))
		}
		return nil
	})
}

// hold leases all blobs of an image, and returns its manifest and the names that it is
// exported by: that of ref, or all where ref is none.
func (s *Store) hold(ctx context.Context, ref string) (manifest imagespec.Descriptor, tags []string, err error) {
	s.mu.RLock()
	e, err := s.find(ref)
	s.mu.RUnlock()
	if err != nil {
		return manifest, nil, err
	}
	tags, record := e.Tags, e.ID
	if named, err := names.Parse(ref); err == nil && slices.Contains(e.Tags, named.String()) {
		tags, record = []string{named.String()}, named.String()
	}
	found, err := s.db.Images.Get(ctx, record)
	if err != nil {
		return manifest, nil, err
	}
	t, err := s.db.ReadTree(ctx, record, found.Target, s.db.Present)
	if err != nil {
		return manifest, nil, s.noteDamage(err)
	}
	lease, _ := leases.FromContext(ctx)
	blobs := append([]imagespec.Descriptor{t.Manifest, t.Config}, t.Layers...)
	for _, blob := range blobs {
		if err := s.db.Leases.AddResource(ctx, leases.Lease{ID: lease}, leases.Resource{ID: blob.Digest.String(), Type: contentResource}); err != nil {
			return manifest, nil, fmt.Errorf("cannot lease blob %s: %w", blob.Digest, errs.OfDisk(err))
		}
	}
	for _, blob := range blobs {
		if err := s.db.Present(ctx, blob); err != nil { // removed before it was leased
			return manifest, nil, err
		}
	}
	return t.Manifest, tags, nil
}

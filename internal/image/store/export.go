package store

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/distribution/reference"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/image/names"
)

// contentResource is how leases call blobs.
const contentResource = "content"

// Export implements image.Store. An archive has, of an image for several platforms, what this
// host has of it: a tag points to the manifest of this platform. The same images and names give the same bytes.
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
		var all []archive.Saved
		for _, ref := range refs {
			saved, err := s.hold(ctx, ref)
			if err != nil {
				return fmt.Errorf("cannot export %s: %w", ref, s.noteDamage(err))
			}
			all = append(all, *saved)
		}
		if err := archive.Write(ctx, s.db.Compared(), to, all); err != nil {
			return fmt.Errorf("cannot export images: %w", s.noteDamage(err))
		}
		return nil
	})
}

// hold leases all blobs of an image, and returns it with the names that it is exported by: ref, or all tags where ref is an
// id. An image without tags has its names with digests then.
func (s *Store) hold(ctx context.Context, ref string) (*archive.Saved, error) {
	s.mu.RLock()
	e, _, err := s.find("", ref)
	s.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	if e.Lazy {
		return nil, fmt.Errorf("only a snapshotter (%s) has its layers; run 'berth image pull %s' first: %w", strings.Join(e.Snapshotters, ", "), ref, errs.Unsupported)
	}
	refs, record := e.Tags, e.ID
	if len(refs) == 0 {
		refs = e.Digests
	}
	if candidates, err := names.Candidates(ref, s.rules.Load().SearchRegistries); err == nil {
		if named := nameIn(e.Tags, e.Digests, candidates); named != nil {
			refs, record = []string{named.String()}, named.String()
		}
	}
	found, err := s.db.Images.Get(ctx, record)
	if err != nil {
		return nil, err
	}
	t, err := s.db.ReadRecord(ctx, found, s.db.Whole)
	if err != nil {
		return nil, err
	}
	saved := &archive.Saved{
		Indexes: t.Indexes, Manifest: t.Manifest, Config: t.Config, Layers: t.Layers,
		Platform: imagespec.Platform{Architecture: t.Image.Architecture, OS: t.Image.OS, Variant: t.Image.Variant},
	}
	if t.Artifact != nil {
		saved.ArtifactType = t.Artifact.Type
	}
	for _, ref := range refs {
		named, err := names.Parse(ref)
		if err != nil {
			return nil, err
		}
		by, ok := named.(reference.Digested)
		if !ok || by.Digest() == t.Manifest.Digest || t.Platform == "" && slices.Contains(digestsOf(t), by.Digest()) {
			saved.Names = append(saved.Names, named)
		}
	}
	return saved, s.lease(ctx, slices.Concat(t.Indexes, []imagespec.Descriptor{t.Manifest, t.Config}, t.Layers))
}

// lease makes the lease of the context keep blobs.
func (s *Store) lease(ctx context.Context, blobs []imagespec.Descriptor) error {
	lease, _ := leases.FromContext(ctx)
	for _, blob := range blobs {
		if err := s.db.Leases.AddResource(ctx, leases.Lease{ID: lease}, leases.Resource{ID: blob.Digest.String(), Type: contentResource}); err != nil {
			return fmt.Errorf("cannot lease blob %s: %w", blob.Digest, errs.OfDisk(err))
		}
	}
	for _, blob := range blobs {
		if err := s.db.Whole(ctx, blob); err != nil { // or removed before it was leased
			return err
		}
	}
	return nil
}

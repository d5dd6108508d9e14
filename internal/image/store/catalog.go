package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/tree"
)

// Layers implements image.Catalog.
func (s *Store) Layers(ctx context.Context) ([]image.Layered, error) {
	ctx = database.WithNamespace(ctx)
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]image.Layered, 0, len(list))
	for _, img := range list {
		t, err := s.treeOf(ctx, img.ID)
		switch {
		case errdefs.IsNotFound(err), errors.Is(err, errs.Invalid):
			continue // it was removed meanwhile
		case err != nil:
			return nil, fmt.Errorf("cannot read the layers of image %s: %w", img.ID, err)
		}
		found := image.Layered{ID: img.ID, Tags: img.Tags}
		for i, layer := range t.Layers {
			if t.Artifact != nil {
				break // its layers are files, and no image can be made from them
			}
			// What opens an encrypted layer is in the manifest of its own image alone.
			if !t.IsEncrypted(i) && s.db.Present(ctx, layer) == nil {
				found.Layers = append(found.Layers, image.Layer{DiffID: t.Image.RootFS.DiffIDs[i], Digest: layer.Digest, MediaType: layer.MediaType, Size: layer.Size})
			}
		}
		all = append(all, found)
	}
	return all, nil
}

// Details implements image.Store.
func (s *Store) Details(ctx context.Context, ref string) (*imagespec.Image, error) {
	img, err := s.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	t, err := s.treeOf(database.WithNamespace(ctx), img.ID)
	if errdefs.IsNotFound(err) { // removed meanwhile
		return nil, fmt.Errorf("the node does not have image %q: %w", ref, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the content of image %s: %w", img.ID, err)
	}
	return &t.Image, nil
}

// treeOf reads the tree of an image by its id, or by the key of a full name of it.
func (s *Store) treeOf(ctx context.Context, name string) (*tree.Tree, error) {
	record, err := s.db.Images.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	t, err := s.db.ReadRecord(ctx, record, s.db.Present)
	return t, s.noteDamage(err)
}

// Tag implements image.Catalog.
func (s *Store) Tag(ctx context.Context, ref string, texts []string) error {
	var parsed []reference.Named
	for _, text := range texts {
		named, err := names.Parse(text)
		if err != nil {
			return err
		}
		if strings.Contains(named.String(), "@") {
			return fmt.Errorf("cannot name an image %s: a digest follows from the content: %w", text, errs.Invalid)
		}
		parsed = append(parsed, named)
	}
	img, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	ctx, end, err := s.background.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = s.db.WithLease(ctx, func(ctx context.Context) error { return s.tag(ctx, img.ID, parsed) })
	if err != nil {
		return fmt.Errorf("cannot name image %s %s: %w", ref, strings.Join(texts, ", "), errs.OfDisk(err))
	}
	return nil
}

func (s *Store) tag(ctx context.Context, id string, added []reference.Named) error {
	t, err := s.treeOf(ctx, id)
	if err != nil {
		return err
	}
	// From now on Remove finds the content in use.
	lease, _ := leases.FromContext(ctx)
	target := leases.Resource{ID: t.Target.Digest.String(), Type: "content"}
	if err := s.db.Leases.AddResource(ctx, leases.Lease{ID: lease}, target); err != nil {
		return err
	}
	chains := t.Chains()
	there, err := s.db.KeepSnapshot(ctx, chains[len(chains)-1])
	if err != nil {
		return err
	}
	img, err := s.Get(ctx, id)
	if err != nil || !there && !img.Lazy {
		return errors.Join(err, fmt.Errorf("the image is being removed: %w", errs.NotFound))
	}
	var all []string
	for _, named := range added {
		all = append(append(all, named.String()), t.DigestNames(named)...)
	}
	defer s.db.SaveNames(ctx) // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.record(ctx, t, slices.Compact(all), false)
	if err == nil && t.Platform != "" && img.IsFor("") { // one image for several platforms
		t.Platform, t.Through = "", nil
		_, err = s.record(ctx, t, slices.Compact(all), false)
	}
	return err
}

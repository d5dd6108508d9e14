package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/tree"
)

// Catalog tells what images are made of, and gives them names: what whoever sends
// images needs to know, to send no more than is missing.
type Catalog interface {
	// Layers returns all images with those of their layers whose content is there,
	// sorted by id.
	Layers(ctx context.Context) ([]Layered, error)
	// Tag gives the image that ref means more names. A name that another image had
	// moves. NotFound when there is no such image.
	Tag(ctx context.Context, ref string, names []string) error
}

// Layered is an image and what it is made of.
type Layered struct {
	ID     string
	Tags   []string
	Layers []Layer
}

// Layer is one layer.
type Layer struct {
	// DiffID is the digest of what it unpacks to, Digest that of its content, which
	// MediaType says how to unpack.
	DiffID, Digest digest.Digest
	MediaType      string
	Size           int64
}

var _ Catalog = (*Images)(nil)

// Layers implements Catalog.
func (s *Images) Layers(ctx context.Context) ([]Layered, error) {
	ctx = s.ns(ctx)
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Layered, 0, len(list))
	for _, img := range list {
		t, err := s.treeOf(ctx, img.ID)
		switch {
		case errdefs.IsNotFound(err), errors.Is(err, errs.Invalid):
			continue // it was removed meanwhile
		case err != nil:
			return nil, fmt.Errorf("cannot tell the layers of image %s: %w", img.ID, err)
		}
		found := Layered{ID: img.ID, Tags: img.Tags}
		for i, layer := range t.Layers {
			if s.present(ctx, layer) == nil {
				found.Layers = append(found.Layers, Layer{DiffID: t.Image.RootFS.DiffIDs[i], Digest: layer.Digest, MediaType: layer.MediaType, Size: layer.Size})
			}
		}
		all = append(all, found)
	}
	return all, nil
}

// treeOf reads the tree of an image by its id.
func (s *Images) treeOf(ctx context.Context, id string) (*tree.Tree, error) {
	record, err := s.images.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.trees().Read(ctx, id, record.Target, s.present)
}

// Tag implements Catalog.
func (s *Images) Tag(ctx context.Context, ref string, texts []string) error {
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
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = s.withLease(ctx, func(ctx context.Context) error { return s.tag(ctx, img.ID, parsed) })
	if err != nil {
		return fmt.Errorf("cannot name image %s %s: %w", ref, strings.Join(texts, ", "), diskError(err))
	}
	return nil
}

func (s *Images) tag(ctx context.Context, id string, added []reference.Named) error {
	t, err := s.treeOf(ctx, id)
	if err != nil {
		return err
	}
	// Whoever removes the image from now on finds its content in use.
	lease, _ := leases.FromContext(ctx)
	target := leases.Resource{ID: t.Target.Digest.String(), Type: "content"}
	if err := s.leases.AddResource(ctx, leases.Lease{ID: lease}, target); err != nil {
		return err
	}
	chains := t.Chains()
	there, err := s.keepSnapshot(ctx, chains[len(chains)-1])
	if err != nil {
		return err
	}
	if _, err := s.Get(ctx, id); err != nil || !there {
		return errors.Join(err, fmt.Errorf("the image is being removed: %w", errs.NotFound))
	}
	var all []string
	for _, named := range added {
		all = append(append(all, named.String()), t.DigestNames(named)...)
	}
	_, err = s.record(ctx, t, slices.Compact(all), false)
	return err
}

package dockerstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	imageapi "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
)

// idLength is the length of a whole id: "sha256:" and 64 digits.
const idLength = len("sha256:") + 64

// Get implements image.Store.
func (s *Images) Get(ctx context.Context, ref string) (*image.Image, error) {
	found, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	img := s.imageOf(found)
	return &img, nil
}

// Details implements image.Store.
func (s *Images) Details(ctx context.Context, ref string) (*imagespec.Image, error) {
	found, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	history, err := s.client.ImageHistory(ctx, found.ID)
	if err != nil {
		return nil, fmt.Errorf("cannot read the history of image %s: %w", found.ID, err)
	}
	known := detailsFrom(found)
	return &imagespec.Image{
		Created: &known.created, Author: found.Author, Platform: known.platform, Config: known.config,
		RootFS:  imagespec.RootFS{Type: found.RootFS.Type, DiffIDs: diffIDs(found)},
		History: historyOf(history.Items, len(found.RootFS.Layers)),
	}, nil
}

// find looks an image up: by its whole id, then by name, then by the beginning of an id. An
// engine finds more than that; what it finds is checked.
func (s *Images) find(ctx context.Context, ref string) (*imageapi.InspectResponse, error) {
	prefix, isPrefix := names.IDPrefix(ref)
	if isPrefix && len(prefix) == idLength {
		found, err := s.inspect(ctx, prefix)
		if err != nil || found != nil && found.ID == prefix {
			return found, err
		}
	}
	named, nameErr := names.Parse(ref)
	if nameErr == nil {
		found, err := s.lookup(ctx, named.String())
		if err != nil || found != nil {
			return found, err
		}
	}
	switch {
	case isPrefix && len(prefix) < idLength:
		return s.findByPrefix(ctx, ref, prefix)
	case !isPrefix && nameErr != nil:
		return nil, nameErr
	}
	return nil, absent(ref)
}

// lookup finds an image by its full reference, nil when there is none.
func (s *Images) lookup(ctx context.Context, name string) (*imageapi.InspectResponse, error) {
	found, err := s.inspect(ctx, name)
	if err != nil || found == nil {
		return nil, err
	}
	// Engines take a tag that looks like an id for one.
	if !slices.Contains(fullNames(found.RepoTags), name) && !slices.Contains(fullNames(found.RepoDigests), name) {
		return nil, nil
	}
	return found, nil
}

// inspect returns what the engine finds, nil for nothing.
func (s *Images) inspect(ctx context.Context, ref string) (*imageapi.InspectResponse, error) {
	found, err := s.client.ImageInspect(ctx, ref)
	if errors.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find image %s: %w", ref, err)
	}
	return &found.InspectResponse, nil
}

func (s *Images) findByPrefix(ctx context.Context, ref, prefix string) (*imageapi.InspectResponse, error) {
	// An engine does not say that a prefix is ambiguous.
	all, err := s.client.ImageList(ctx, client.ImageListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("cannot find image %s: %w", ref, err)
	}
	id := ""
	for _, summary := range all.Items {
		switch {
		case !strings.HasPrefix(summary.ID, prefix), summary.ID == id:
		case id != "":
			return nil, fmt.Errorf("image id %q is ambiguous: %w", ref, errs.Invalid)
		default:
			id = summary.ID
		}
	}
	if id == "" {
		return nil, absent(ref)
	}
	found, err := s.inspect(ctx, id)
	if err == nil && found == nil {
		err = absent(ref) // removed meanwhile
	}
	return found, err
}

func absent(ref string) error {
	return fmt.Errorf("the node does not have image %q: %w", ref, errs.NotFound)
}

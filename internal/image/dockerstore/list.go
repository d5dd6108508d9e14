package dockerstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	imageapi "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// List implements image.Store. It lists images without a name, too, but not the parents that a
// build has left without one.
func (s *Images) List(ctx context.Context) ([]image.Image, error) {
	summaries, err := s.summaries(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]image.Image, 0, len(summaries))
	for _, summary := range summaries {
		known, err := s.detailsOf(ctx, summary)
		if err != nil {
			return nil, err
		}
		list = append(list, s.listed(summary, known))
	}
	s.forgetDetails(summaries)
	return list, nil
}

// summaries are the engine's images, sorted by id.
func (s *Images) summaries(ctx context.Context) ([]imageapi.Summary, error) {
	all, err := s.client.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	list := all.Items
	slices.SortFunc(list, func(a, b imageapi.Summary) int { return strings.Compare(a.ID, b.ID) })
	return slices.CompactFunc(list, func(a, b imageapi.Summary) bool { return a.ID == b.ID }), nil
}

// detailsOf returns what a summary lacks. It asks the engine once for each image. An image
// that cannot be read, or is removed meanwhile, has none: it does not hide the others.
func (s *Images) detailsOf(ctx context.Context, summary imageapi.Summary) (details, error) {
	s.mu.Lock()
	known, ok := s.details[summary.ID]
	s.mu.Unlock()
	// The content behind an index may grow: another pull adds a platform.
	if ok && known.size == summary.Size {
		return known, nil
	}
	found, err := s.inspect(ctx, summary.ID)
	switch {
	case errors.Is(err, errs.Unavailable), errors.Is(err, errs.Deadline), ctx.Err() != nil:
		return details{}, err
	case err != nil:
		s.log.Warn("cannot read an image that the engine lists", "image", summary.ID, "error", err)
		fallthrough
	case found == nil:
		return details{created: unixTime(summary.Created)}, nil
	}
	known = detailsFrom(found)
	known.size = summary.Size
	s.mu.Lock()
	s.details[summary.ID] = known
	s.mu.Unlock()
	return known, nil
}

// forgetDetails drops the details of images that are gone.
func (s *Images) forgetDetails(present []imageapi.Summary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.details {
		if _, ok := slices.BinarySearchFunc(present, id, func(at imageapi.Summary, id string) int { return strings.Compare(at.ID, id) }); !ok {
			delete(s.details, id)
		}
	}
}

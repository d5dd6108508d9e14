package dockerstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
)

// Layers implements image.Catalog. No image has layers there: an engine completes no archive
// with layers that it has, so clients send all of them.
func (s *Images) Layers(ctx context.Context) ([]image.Layered, error) {
	summaries, err := s.summaries(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]image.Layered, 0, len(summaries))
	for _, summary := range summaries {
		all = append(all, image.Layered{ID: summary.ID, Tags: fullTags(summary.RepoTags)})
	}
	return all, nil
}

// Tag implements image.Catalog.
func (s *Images) Tag(ctx context.Context, ref string, texts []string) error {
	var added []reference.Named
	for _, text := range texts {
		named, err := names.Parse(text)
		if err != nil {
			return err
		}
		if names.HasDigest(named.String()) {
			return fmt.Errorf("cannot name an image %s: a digest follows from the content: %w", text, errs.Invalid)
		}
		added = append(added, named)
	}
	found, err := s.find(ctx, ref)
	if err != nil {
		return err
	}
	for _, named := range added {
		if _, err := s.client.ImageTag(ctx, client.ImageTagOptions{Source: found.ID, Target: named.String()}); err != nil {
			return fmt.Errorf("cannot name image %s %s: %w", ref, strings.Join(texts, ", "), err)
		}
	}
	return nil
}

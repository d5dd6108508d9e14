package dockerstore

import (
	"context"
	"fmt"
	"slices"

	imageapi "github.com/moby/moby/api/types/image"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

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

func diffIDs(found *imageapi.InspectResponse) []digest.Digest {
	ids := make([]digest.Digest, len(found.RootFS.Layers))
	for i, layer := range found.RootFS.Layers {
		ids[i] = digest.Digest(layer)
	}
	return ids
}

// historyOf converts the history of an engine, which has the newest entry first. An engine has the
// size of what an entry added, and not whether it made a layer. A layer may have no bytes; so entries
// without a size are those without a layer only if the others are as many as there are layers.
func historyOf(items []imageapi.HistoryResponseItem, layers int) []imagespec.History {
	list := make([]imagespec.History, 0, len(items))
	sized := 0
	for _, item := range slices.Backward(items) {
		created := unixTime(item.Created)
		list = append(list, imagespec.History{
			Created: &created, CreatedBy: item.CreatedBy, Comment: item.Comment, EmptyLayer: item.Size == 0,
		})
		if item.Size != 0 {
			sized++
		}
	}
	if sized != layers {
		for i := range list {
			list[i].EmptyLayer = false
		}
	}
	return list
}

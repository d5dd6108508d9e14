package berthapi

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berthrun/berth/internal/errs"
)

func (s *Server) listLayers(ctx context.Context, _ *wrapperspb.BytesValue) (any, error) {
	all, err := s.Images.Layers(ctx)
	if err != nil {
		return nil, err
	}
	list := &LayerList{Images: make([]LayeredImage, 0, len(all))}
	for _, img := range all {
		layered := LayeredImage{ID: img.ID, Tags: img.Tags}
		for _, l := range img.Layers {
			layered.Layers = append(layered.Layers, Layer{DiffID: l.DiffID.String(), Digest: l.Digest.String(), MediaType: l.MediaType, Size: l.Size})
		}
		list.Images = append(list.Images, layered)
	}
	return list, nil
}

func (s *Server) tagImage(ctx context.Context, msg *wrapperspb.BytesValue) (any, error) {
	var req TagRequest
	if err := read(msg, &req); err != nil {
		return nil, err
	}
	if req.Image == "" || len(req.Names) == 0 {
		return nil, fmt.Errorf("cannot name an image: want the image and at least one name: %w", errs.Invalid)
	}
	return struct{}{}, s.Images.Tag(ctx, req.Image, req.Names)
}

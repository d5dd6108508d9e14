package berthapi

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// auditor returns the part of the store that accounts for its files.
func (h *handlers) auditor() (image.Auditor, error) {
	auditor, ok := h.images.(image.Auditor)
	if !ok {
		return nil, fmt.Errorf("the images of this daemon are a Docker Engine's; use its own tools (docker system df): %w", errs.Unsupported)
	}
	return auditor, nil
}

// GetDiskUse implements berthpb.BerthServer.
func (h *handlers) GetDiskUse(ctx context.Context, _ *berthpb.GetDiskUseRequest) (*berthpb.GetDiskUseResponse, error) {
	auditor, err := h.auditor()
	if err != nil {
		return nil, err
	}
	use, err := auditor.DiskUse(ctx)
	if err != nil {
		return nil, err
	}
	resp := &berthpb.GetDiskUseResponse{Unfinished: use.Unfinished, Total: use.Total}
	for i := range use.Images {
		u := &use.Images[i]
		resp.Images = append(resp.Images, &berthpb.ImageUse{
			Id: u.ID, Names: u.Names, Content: u.Content, Layers: u.Layers, Own: u.Own, Shared: u.Shared, Containers: u.Containers,
		})
	}
	for _, u := range use.Kept {
		resp.Kept = append(resp.Kept, &berthpb.LayerUse{Chain: u.Chain, Bytes: u.Bytes, Containers: u.Containers})
	}
	return resp, nil
}

// DiskUse returns what images take on disk.
func (c *Client) DiskUse(ctx context.Context) (*image.DiskUse, error) {
	resp, err := c.api.GetDiskUse(ctx, &berthpb.GetDiskUseRequest{})
	if err != nil {
		return nil, err
	}
	use := &image.DiskUse{Images: []image.ImageUse{}, Kept: []image.LayerUse{}, Unfinished: resp.GetUnfinished(), Total: resp.GetTotal()}
	for _, u := range resp.GetImages() {
		use.Images = append(use.Images, image.ImageUse{
			ID: u.GetId(), Names: list(u.GetNames()), Content: u.GetContent(), Layers: u.GetLayers(), Own: u.GetOwn(), Shared: u.GetShared(),
			Containers: list(u.GetContainers()),
		})
	}
	for _, u := range resp.GetKept() {
		use.Kept = append(use.Kept, image.LayerUse{Chain: u.GetChain(), Bytes: u.GetBytes(), Containers: list(u.GetContainers())})
	}
	return use, nil
}

// list returns an empty list for nil: programs read one from JSON.
func list(all []string) []string {
	if all == nil {
		return []string{}
	}
	return all
}

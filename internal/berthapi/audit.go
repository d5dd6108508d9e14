package berthapi

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"

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

// CheckImages implements berthpb.BerthServer.
func (h *handlers) CheckImages(ctx context.Context, req *berthpb.CheckImagesRequest) (*berthpb.CheckImagesResponse, error) {
	auditor, err := h.auditor()
	if err != nil {
		return nil, err
	}
	report, err := auditor.Check(ctx, req.GetRepair())
	if err != nil {
		return nil, err
	}
	resp := &berthpb.CheckImagesResponse{Blobs: int64(report.Blobs), Layers: int64(report.Layers), Bytes: report.Bytes}
	for _, note := range report.Notes {
		resp.Notes = append(resp.Notes, validText(note))
	}
	for i := range report.Damage {
		d := &report.Damage[i]
		resp.Damage = append(resp.Damage, &berthpb.Damage{
			Object: d.Object, Digest: d.Digest.String(), Problem: validText(d.Problem), Images: d.Images, Containers: d.Containers,
			Repaired: d.Repaired, Advice: validText(d.Advice),
		})
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

// CheckImages has the daemon check all images, and repair them if repair is set.
func (c *Client) CheckImages(ctx context.Context, repair bool) (*image.CheckReport, error) {
	resp, err := c.api.CheckImages(ctx, &berthpb.CheckImagesRequest{Repair: repair})
	if err != nil {
		return nil, err
	}
	report := &image.CheckReport{
		Blobs: int(resp.GetBlobs()), Layers: int(resp.GetLayers()), Bytes: resp.GetBytes(), Damage: []image.Damage{}, Notes: list(resp.GetNotes()),
	}
	for _, d := range resp.GetDamage() {
		report.Damage = append(report.Damage, image.Damage{
			Object: d.GetObject(), Digest: digest.Digest(d.GetDigest()), Problem: d.GetProblem(), Images: list(d.GetImages()),
			Containers: list(d.GetContainers()), Repaired: d.GetRepaired(), Advice: d.GetAdvice(),
		})
	}
	return report, nil
}

// list returns an empty list for nil: programs read one from JSON.
func list(all []string) []string {
	if all == nil {
		return []string{}
	}
	return all
}

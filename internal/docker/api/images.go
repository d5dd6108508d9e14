package api

import (
	"context"
	"io"

	"github.com/moby/moby/client"
)

// ImageList is client.Client.ImageList.
func (c *Client) ImageList(ctx context.Context, opts client.ImageListOptions) (client.ImageListResult, error) {
	return call(ctx, c, "list images", func(ctx context.Context, moby *client.Client) (client.ImageListResult, error) {
		return moby.ImageList(ctx, opts)
	})
}

// ImageInspect is client.Client.ImageInspect.
func (c *Client) ImageInspect(ctx context.Context, ref string, opts ...client.ImageInspectOption) (client.ImageInspectResult, error) {
	return call(ctx, c, "inspect image", func(ctx context.Context, moby *client.Client) (client.ImageInspectResult, error) {
		return moby.ImageInspect(ctx, ref, opts...)
	})
}

// ImageHistory is client.Client.ImageHistory.
func (c *Client) ImageHistory(ctx context.Context, id string, opts ...client.ImageHistoryOption) (client.ImageHistoryResult, error) {
	return call(ctx, c, "history of image", func(ctx context.Context, moby *client.Client) (client.ImageHistoryResult, error) {
		return moby.ImageHistory(ctx, id, opts...)
	})
}

// ImageRemove is client.Client.ImageRemove.
func (c *Client) ImageRemove(ctx context.Context, ref string, opts client.ImageRemoveOptions) (client.ImageRemoveResult, error) {
	return call(ctx, c, "remove image", func(ctx context.Context, moby *client.Client) (client.ImageRemoveResult, error) {
		return moby.ImageRemove(ctx, ref, opts)
	})
}

// ImageTag is client.Client.ImageTag.
func (c *Client) ImageTag(ctx context.Context, opts client.ImageTagOptions) (client.ImageTagResult, error) {
	return call(ctx, c, "tag image", func(ctx context.Context, moby *client.Client) (client.ImageTagResult, error) {
		return moby.ImageTag(ctx, opts)
	})
}

// ImagePull is client.Client.ImagePull.
func (c *Client) ImagePull(ctx context.Context, ref string, opts client.ImagePullOptions) (client.ImagePullResponse, error) {
	return repeat(ctx, c, "pull image", func(ctx context.Context, moby *client.Client) (client.ImagePullResponse, error) {
		return moby.ImagePull(ctx, ref, opts)
	})
}

// ImageLoad is client.Client.ImageLoad.
func (c *Client) ImageLoad(ctx context.Context, from io.Reader, opts ...client.ImageLoadOption) (client.ImageLoadResult, error) {
	return once(ctx, c, "load images", func(ctx context.Context, moby *client.Client) (client.ImageLoadResult, error) {
		return moby.ImageLoad(ctx, from, opts...)
	})
}

// ImageSave is client.Client.ImageSave.
func (c *Client) ImageSave(ctx context.Context, refs []string, opts ...client.ImageSaveOption) (client.ImageSaveResult, error) {
	return repeat(ctx, c, "save images", func(ctx context.Context, moby *client.Client) (client.ImageSaveResult, error) {
		return moby.ImageSave(ctx, refs, opts...)
	})
}

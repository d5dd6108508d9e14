package api

import (
	"context"
	"io"

	"github.com/moby/moby/client"
)

// ImageList is client.Client.ImageList.
func (c *Client) ImageList(ctx context.Context, opts client.ImageListOptions) (client.ImageListResult, error) {
	return call(ctx, c, "list images", func(ctx context.Context) (client.ImageListResult, error) {
		return c.moby.ImageList(ctx, opts)
	})
}

// ImageInspect is client.Client.ImageInspect.
func (c *Client) ImageInspect(ctx context.Context, ref string, opts ...client.ImageInspectOption) (client.ImageInspectResult, error) {
	return call(ctx, c, "inspect image", func(ctx context.Context) (client.ImageInspectResult, error) {
		return c.moby.ImageInspect(ctx, ref, opts...)
	})
}

// ImageRemove is client.Client.ImageRemove.
func (c *Client) ImageRemove(ctx context.Context, ref string, opts client.ImageRemoveOptions) (client.ImageRemoveResult, error) {
	return call(ctx, c, "remove image", func(ctx context.Context) (client.ImageRemoveResult, error) {
		return c.moby.ImageRemove(ctx, ref, opts)
	})
}

// ImageTag is client.Client.ImageTag.
func (c *Client) ImageTag(ctx context.Context, opts client.ImageTagOptions) (client.ImageTagResult, error) {
	return call(ctx, c, "tag image", func(ctx context.Context) (client.ImageTagResult, error) {
		return c.moby.ImageTag(ctx, opts)
	})
}

// ImagePull is client.Client.ImagePull.
func (c *Client) ImagePull(ctx context.Context, ref string, opts client.ImagePullOptions) (client.ImagePullResponse, error) {
	return stream(ctx, c, "pull image", func(ctx context.Context) (client.ImagePullResponse, error) {
		return c.moby.ImagePull(ctx, ref, opts)
	})
}

// ImageLoad is client.Client.ImageLoad.
func (c *Client) ImageLoad(ctx context.Context, from io.Reader, opts ...client.ImageLoadOption) (client.ImageLoadResult, error) {
	return stream(ctx, c, "load images", func(ctx context.Context) (client.ImageLoadResult, error) {
		return c.moby.ImageLoad(ctx, from, opts...)
	})
}

// ImageSave is client.Client.ImageSave.
func (c *Client) ImageSave(ctx context.Context, refs []string, opts ...client.ImageSaveOption) (client.ImageSaveResult, error) {
	return stream(ctx, c, "save images", func(ctx context.Context) (client.ImageSaveResult, error) {
		return c.moby.ImageSave(ctx, refs, opts...)
	})
}

package api

import (
	"context"

	"github.com/moby/moby/client"
)

// ExecCreate is client.Client.ExecCreate.
func (c *Client) ExecCreate(ctx context.Context, id string, opts client.ExecCreateOptions) (client.ExecCreateResult, error) {
	return call(ctx, c, "create exec", func(ctx context.Context, moby *client.Client) (client.ExecCreateResult, error) {
		return moby.ExecCreate(ctx, id, opts)
	})
}

// ExecAttach is client.Client.ExecAttach.
func (c *Client) ExecAttach(ctx context.Context, execID string, opts client.ExecAttachOptions) (client.ExecAttachResult, error) {
	return begin(ctx, c, "start exec", func(ctx context.Context, moby *client.Client) (client.ExecAttachResult, error) {
		return moby.ExecAttach(ctx, execID, opts)
	})
}

// ExecInspect is client.Client.ExecInspect.
func (c *Client) ExecInspect(ctx context.Context, execID string, opts client.ExecInspectOptions) (client.ExecInspectResult, error) {
	return call(ctx, c, "inspect exec", func(ctx context.Context, moby *client.Client) (client.ExecInspectResult, error) {
		return moby.ExecInspect(ctx, execID, opts)
	})
}

// ExecResize is client.Client.ExecResize.
func (c *Client) ExecResize(ctx context.Context, execID string, opts client.ExecResizeOptions) (client.ExecResizeResult, error) {
	return call(ctx, c, "resize exec", func(ctx context.Context, moby *client.Client) (client.ExecResizeResult, error) {
		return moby.ExecResize(ctx, execID, opts)
	})
}

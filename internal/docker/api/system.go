package api

import (
	"context"

	"github.com/moby/moby/client"
)

// Ping is client.Client.Ping.
func (c *Client) Ping(ctx context.Context, opts client.PingOptions) (client.PingResult, error) {
	return call(ctx, c, "ping", func(ctx context.Context) (client.PingResult, error) {
		return c.moby.Ping(ctx, opts)
	})
}

// Info is client.Client.Info.
func (c *Client) Info(ctx context.Context, opts client.InfoOptions) (client.SystemInfoResult, error) {
	return call(ctx, c, "info", func(ctx context.Context) (client.SystemInfoResult, error) {
		return c.moby.Info(ctx, opts)
	})
}

// DiskUsage is client.Client.DiskUsage.
func (c *Client) DiskUsage(ctx context.Context, opts client.DiskUsageOptions) (client.DiskUsageResult, error) {
	return call(ctx, c, "disk usage", func(ctx context.Context) (client.DiskUsageResult, error) {
		return c.moby.DiskUsage(ctx, opts)
	})
}

// Events is client.Client.Events. Errors on its channel have no kind.
func (c *Client) Events(ctx context.Context, opts client.EventsListOptions) client.EventsResult {
	return c.moby.Events(ctx, opts)
}

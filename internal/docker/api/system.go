package api

import (
	"context"
	"net/http"

	"github.com/moby/moby/client"
)

// Ping is client.Client.Ping.
func (c *Client) Ping(ctx context.Context, opts client.PingOptions) (client.PingResult, error) {
	return call(ctx, c, "ping", func(ctx context.Context, moby *client.Client) (client.PingResult, error) {
		return moby.Ping(ctx, opts)
	})
}

// Info is client.Client.Info.
func (c *Client) Info(ctx context.Context, opts client.InfoOptions) (client.SystemInfoResult, error) {
	return call(ctx, c, "info", func(ctx context.Context, moby *client.Client) (client.SystemInfoResult, error) {
		return moby.Info(ctx, opts)
	})
}

// DiskUsage is client.Client.DiskUsage.
func (c *Client) DiskUsage(ctx context.Context, opts client.DiskUsageOptions) (client.DiskUsageResult, error) {
	return call(ctx, c, "disk usage", func(ctx context.Context, moby *client.Client) (client.DiskUsageResult, error) {
		return moby.DiskUsage(ctx, opts)
	})
}

// Events is client.Client.Events. An engine that does not begin to answer is an error in the
// result's channel, as is the end of the stream; both have a kind.
func (c *Client) Events(ctx context.Context, opts client.EventsListOptions) client.EventsResult {
	failed := make(chan error, 1)
	result, err := begin(ctx, c, "events", func(ctx context.Context, moby *client.Client) (client.EventsResult, error) {
		result := moby.Events(ctx, opts)
		if !began(ctx) {
			return result, <-result.Err
		}
		return result, nil
	})
	if err != nil {
		failed <- err
		return client.EventsResult{Messages: result.Messages, Err: failed}
	}
	go func() {
		if err := <-result.Err; err != nil {
			failed <- c.fault(ctx, "events", err, &response{status: http.StatusOK})
		}
		close(failed)
	}()
	return client.EventsResult{Messages: result.Messages, Err: failed}
}

package api

import (
	"context"

	"github.com/moby/moby/client"
)

// ContainerCreate is client.Client.ContainerCreate.
func (c *Client) ContainerCreate(ctx context.Context, opts client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	return call(ctx, c, "create container", func(ctx context.Context) (client.ContainerCreateResult, error) {
		return c.moby.ContainerCreate(ctx, opts)
	})
}

// ContainerStart is client.Client.ContainerStart.
func (c *Client) ContainerStart(ctx context.Context, id string, opts client.ContainerStartOptions) (client.ContainerStartResult, error) {
	return call(ctx, c, "start container", func(ctx context.Context) (client.ContainerStartResult, error) {
		return c.moby.ContainerStart(ctx, id, opts)
	})
}

// ContainerInspect is client.Client.ContainerInspect.
func (c *Client) ContainerInspect(ctx context.Context, id string, opts client.ContainerInspectOptions) (client.ContainerInspectResult, error) {
	return call(ctx, c, "inspect container", func(ctx context.Context) (client.ContainerInspectResult, error) {
		return c.moby.ContainerInspect(ctx, id, opts)
	})
}

// ContainerList is client.Client.ContainerList.
func (c *Client) ContainerList(ctx context.Context, opts client.ContainerListOptions) (client.ContainerListResult, error) {
	return call(ctx, c, "list containers", func(ctx context.Context) (client.ContainerListResult, error) {
		return c.moby.ContainerList(ctx, opts)
	})
}

// ContainerKill is client.Client.ContainerKill.
func (c *Client) ContainerKill(ctx context.Context, id string, opts client.ContainerKillOptions) (client.ContainerKillResult, error) {
	return call(ctx, c, "kill container", func(ctx context.Context) (client.ContainerKillResult, error) {
		return c.moby.ContainerKill(ctx, id, opts)
	})
}

// ContainerStop is client.Client.ContainerStop.
func (c *Client) ContainerStop(ctx context.Context, id string, opts client.ContainerStopOptions) (client.ContainerStopResult, error) {
	return call(ctx, c, "stop container", func(ctx context.Context) (client.ContainerStopResult, error) {
		return c.moby.ContainerStop(ctx, id, opts)
	})
}

// ContainerRemove is client.Client.ContainerRemove.
func (c *Client) ContainerRemove(ctx context.Context, id string, opts client.ContainerRemoveOptions) (client.ContainerRemoveResult, error) {
	return call(ctx, c, "remove container", func(ctx context.Context) (client.ContainerRemoveResult, error) {
		return c.moby.ContainerRemove(ctx, id, opts)
	})
}

// ContainerUpdate is client.Client.ContainerUpdate.
func (c *Client) ContainerUpdate(ctx context.Context, id string, opts client.ContainerUpdateOptions) (client.ContainerUpdateResult, error) {
	return call(ctx, c, "update container", func(ctx context.Context) (client.ContainerUpdateResult, error) {
		return c.moby.ContainerUpdate(ctx, id, opts)
	})
}

// ContainerResize is client.Client.ContainerResize.
func (c *Client) ContainerResize(ctx context.Context, id string, opts client.ContainerResizeOptions) (client.ContainerResizeResult, error) {
	return call(ctx, c, "resize container", func(ctx context.Context) (client.ContainerResizeResult, error) {
		return c.moby.ContainerResize(ctx, id, opts)
	})
}

// ContainerAttach is client.Client.ContainerAttach.
func (c *Client) ContainerAttach(ctx context.Context, id string, opts client.ContainerAttachOptions) (client.ContainerAttachResult, error) {
	return stream(ctx, c, "attach", func(ctx context.Context) (client.ContainerAttachResult, error) {
		return c.moby.ContainerAttach(ctx, id, opts)
	})
}

// ContainerLogs is client.Client.ContainerLogs.
func (c *Client) ContainerLogs(ctx context.Context, id string, opts client.ContainerLogsOptions) (client.ContainerLogsResult, error) {
	return stream(ctx, c, "logs", func(ctx context.Context) (client.ContainerLogsResult, error) {
		return c.moby.ContainerLogs(ctx, id, opts)
	})
}

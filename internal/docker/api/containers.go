package api

import (
	"context"

	"github.com/moby/moby/client"
)

// ContainerCreate is client.Client.ContainerCreate.
func (c *Client) ContainerCreate(ctx context.Context, opts client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	return call(ctx, c, "create container", func(ctx context.Context, moby *client.Client) (client.ContainerCreateResult, error) {
		return moby.ContainerCreate(ctx, opts)
	})
}

// ContainerStart is client.Client.ContainerStart.
func (c *Client) ContainerStart(ctx context.Context, id string, opts client.ContainerStartOptions) (client.ContainerStartResult, error) {
	return call(ctx, c, "start container", func(ctx context.Context, moby *client.Client) (client.ContainerStartResult, error) {
		return moby.ContainerStart(ctx, id, opts)
	})
}

// ContainerInspect is client.Client.ContainerInspect.
func (c *Client) ContainerInspect(ctx context.Context, id string, opts client.ContainerInspectOptions) (client.ContainerInspectResult, error) {
	return call(ctx, c, "inspect container", func(ctx context.Context, moby *client.Client) (client.ContainerInspectResult, error) {
		return moby.ContainerInspect(ctx, id, opts)
	})
}

// ContainerList is client.Client.ContainerList.
func (c *Client) ContainerList(ctx context.Context, opts client.ContainerListOptions) (client.ContainerListResult, error) {
	return call(ctx, c, "list containers", func(ctx context.Context, moby *client.Client) (client.ContainerListResult, error) {
		return moby.ContainerList(ctx, opts)
	})
}

// ContainerKill is client.Client.ContainerKill.
func (c *Client) ContainerKill(ctx context.Context, id string, opts client.ContainerKillOptions) (client.ContainerKillResult, error) {
	return call(ctx, c, "kill container", func(ctx context.Context, moby *client.Client) (client.ContainerKillResult, error) {
		return moby.ContainerKill(ctx, id, opts)
	})
}

// ContainerStop is client.Client.ContainerStop.
func (c *Client) ContainerStop(ctx context.Context, id string, opts client.ContainerStopOptions) (client.ContainerStopResult, error) {
	return call(ctx, c, "stop container", func(ctx context.Context, moby *client.Client) (client.ContainerStopResult, error) {
		return moby.ContainerStop(ctx, id, opts)
	})
}

// ContainerRemove is client.Client.ContainerRemove.
func (c *Client) ContainerRemove(ctx context.Context, id string, opts client.ContainerRemoveOptions) (client.ContainerRemoveResult, error) {
	return call(ctx, c, "remove container", func(ctx context.Context, moby *client.Client) (client.ContainerRemoveResult, error) {
		return moby.ContainerRemove(ctx, id, opts)
	})
}

// ContainerUpdate is client.Client.ContainerUpdate.
func (c *Client) ContainerUpdate(ctx context.Context, id string, opts client.ContainerUpdateOptions) (client.ContainerUpdateResult, error) {
	return call(ctx, c, "update container", func(ctx context.Context, moby *client.Client) (client.ContainerUpdateResult, error) {
		return moby.ContainerUpdate(ctx, id, opts)
	})
}

// ContainerResize is client.Client.ContainerResize.
func (c *Client) ContainerResize(ctx context.Context, id string, opts client.ContainerResizeOptions) (client.ContainerResizeResult, error) {
	return call(ctx, c, "resize container", func(ctx context.Context, moby *client.Client) (client.ContainerResizeResult, error) {
		return moby.ContainerResize(ctx, id, opts)
	})
}

// ContainerAttach is client.Client.ContainerAttach.
func (c *Client) ContainerAttach(ctx context.Context, id string, opts client.ContainerAttachOptions) (client.ContainerAttachResult, error) {
	return begin(ctx, c, "attach", func(ctx context.Context, moby *client.Client) (client.ContainerAttachResult, error) {
		return moby.ContainerAttach(ctx, id, opts)
	})
}

// ContainerLogs is client.Client.ContainerLogs.
func (c *Client) ContainerLogs(ctx context.Context, id string, opts client.ContainerLogsOptions) (client.ContainerLogsResult, error) {
	return begin(ctx, c, "logs", func(ctx context.Context, moby *client.Client) (client.ContainerLogsResult, error) {
		return moby.ContainerLogs(ctx, id, opts)
	})
}

// ContainerStatPath is client.Client.ContainerStatPath.
func (c *Client) ContainerStatPath(ctx context.Context, id string, opts client.ContainerStatPathOptions) (client.ContainerStatPathResult, error) {
	return call(ctx, c, "stat in container", func(ctx context.Context, moby *client.Client) (client.ContainerStatPathResult, error) {
		return moby.ContainerStatPath(ctx, id, opts)
	})
}

// CopyFromContainer is client.Client.CopyFromContainer. The caller closes the archive, and ctx must
// last until then.
func (c *Client) CopyFromContainer(ctx context.Context, id string, opts client.CopyFromContainerOptions) (client.CopyFromContainerResult, error) {
	return begin(ctx, c, "copy from container", func(ctx context.Context, moby *client.Client) (client.CopyFromContainerResult, error) {
		return moby.CopyFromContainer(ctx, id, opts)
	})
}

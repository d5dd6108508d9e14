package docker

import (
	"context"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine"
)

// Attach connects streams to a running container.
func (e *Engine) Attach(ctx context.Context, spec *engine.AttachSpec) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	obj, err := e.running(ctx, spec.ContainerID)
	if err != nil {
		return err
	}
	conn, err := e.client.ContainerAttach(ctx, obj.engineID, client.ContainerAttachOptions{
		Stream: true, Stdin: spec.Stdin != nil, Stdout: spec.Stdout != nil, Stderr: spec.Stderr != nil && !obj.tty,
		DetachKeys: detachKeys,
	})
	if err != nil {
		return err
	}
	go forwardSizes(ctx, spec.Resize, func(ctx context.Context, size engine.TerminalSize) error {
		_, err := e.client.ContainerResize(ctx, obj.engineID, client.ContainerResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
		return err
	})
	return copyStreams(ctx, conn.HijackedResponse, streams{spec.Stdin, spec.Stdout, spec.Stderr, obj.tty})
}

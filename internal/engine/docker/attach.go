package docker

import (
	"context"
	"errors"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/stream"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// attachBehind is how far a client may fall behind the container, in bytes. The engine writes to all clients
// and to the log in turn: one that does not read would hold up the container.
const attachBehind = 8 << 20

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
		DetachKeys: stream.DetachKeys,
	})
	if err != nil {
		return err
	}
	go stream.ForwardSizes(ctx, spec.Resize, func(ctx context.Context, size engine.TerminalSize) error {
		_, err := e.client.ContainerResize(ctx, obj.engineID, client.ContainerResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
		return err
	})
	return stream.Copy(ctx, conn.HijackedResponse, stream.Streams{
		Stdin: spec.Stdin, Stdout: spec.Stdout, Stderr: spec.Stderr, TTY: obj.tty,
		EndInput: obj.stdinOnce && !obj.tty, Ended: e.endOf(ctx, obj.pid), MayFallBehind: attachBehind,
	})
}

// endOf returns a channel that is closed when a process has ended. It is nil when the process cannot be
// watched: the output ends when the engine closes it then.
func (e *Engine) endOf(ctx context.Context, pid int) <-chan struct{} {
	ended := make(chan struct{})
	pidfd, err := sysproc.OpenPidfd(pid)
	switch {
	case errors.Is(err, errs.NotFound):
		close(ended)
		return ended
	case err != nil:
		e.log.Warn("cannot watch the process of an attached container", "pid", pid, "error", err)
		return nil
	}
	go func() {
		defer pidfd.Close()
		if sysproc.AwaitExit(ctx, pidfd) == nil {
			close(ended)
		}
	}()
	return ended
}

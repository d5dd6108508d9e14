package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/stream"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// attachBehind is how far a client may fall behind the container, in bytes. The engine writes to all clients
// and to the log in turn: one that does not read would hold up the container.
const attachBehind = 8 << 20

// attachMax is how many clients one container has at most, as with the native engine: each may be attachBehind.
const attachMax = 64

// attached counts the clients of containers. The zero value has none.
type attached struct {
	mu      sync.Mutex
	clients map[string]int // by the container's CRI id
}

// join counts one more client of a container until leave: Exhausted when it has attachMax.
func (a *attached) join(id string) (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.clients[id]; n >= attachMax {
		return nil, fmt.Errorf("cannot attach to container %s: it has %d attached clients already, detach one of them: %w", id, n, errs.Exhausted)
	}
	if a.clients == nil {
		a.clients = map[string]int{}
	}
	a.clients[id]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.clients[id]--; a.clients[id] == 0 {
			delete(a.clients, id)
		}
	}, nil
}

// Attach connects streams to a running container.
func (e *Engine) Attach(ctx context.Context, spec *engine.AttachSpec) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	leave, err := e.attached.join(spec.ContainerID)
	if err != nil {
		return err
	}
	defer leave()
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

package server

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/wire"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// attach gives a client what the container writes from now on. What the client
// sends it writes into the container's stdin itself.
func (ss *session) attach(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.AttachCall
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	named, err := files(req, body.Files)
	if err != nil {
		return nil, err
	}
	c, err := ss.server.find(body.ID)
	if err != nil {
		return nil, err
	}
	if body.Stdin {
		defer func() {
			if ss.server.stopping.Err() == nil { // else the client goes on with the successor
				c.stdinDone(ctx)
			}
		}()
	}
	pump, err := c.output(ctx)
	if pump == nil || err != nil {
		return nil, err
	}
	var sinks [2]io.Writer
	for i, name := range []string{supervisor.StreamStdout, supervisor.StreamStderr} {
		if named[name] == nil {
			continue
		}
		f, err := sink(req, named[name])
		if err != nil {
			return nil, err
		}
		defer f.Close()
		sinks[i] = f
	}
	subscribe := pump.Subscribe
	if body.Resume {
		subscribe = pump.Resubscribe
	}
	sub, err := subscribe(sinks[0], sinks[1])
	if err != nil {
		return nil, fmt.Errorf("cannot attach to container %s: %w", c.id, err)
	}
	defer sub.Close()
	if joined := named[supervisor.FileJoined]; joined != nil {
		if _, err := joined.Write([]byte{1}); err != nil {
			return nil, fmt.Errorf("cannot attach to container %s: the client is gone: %w", c.id, err)
		}
	}
	select {
	case <-sub.Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := sub.Err(); err != nil {
		return nil, fmt.Errorf("cannot attach to container %s: %w", c.id, err)
	}
	if !isClosed(c.ended) {
		return nil, fmt.Errorf("supervisor is stopping: %w", errs.Unavailable)
	}
	return nil, nil
}

// output returns the pump of a container's output, once it is adopted; nil when it had
// ended before this process began.
func (c *container) output(ctx context.Context) (*logpump.Pump, error) {
	for waited := false; ; waited = true {
		c.mu.Lock()
		pump, stage := c.pump, c.rec.Stage
		c.mu.Unlock()
		switch {
		case stage == creating:
			return nil, fmt.Errorf("cannot attach to container %s: its creation did not end: %w", c.id, errs.State)
		case pump != nil || stage == exited || waited:
			return pump, nil
		}
		if err := c.begin(ctx); err != nil {
			return nil, err
		}
		c.end()
	}
}

// sink makes a pipe of the client's one that a slow client does not block a
// thread with, and takes it over.
func sink(req *wire.Request, f *os.File) (*os.File, error) {
	keepFile(req, f)
	return sysfd.Pollable(f)
}

// stdinDone is what a client says when its input has ended.
func (ss *session) stdinDone(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	c, err := ss.container(req)
	if err != nil {
		return nil, err
	}
	c.stdinDone(ctx)
	return nil, nil
}

// stdinDone closes the input of a StdinOnce container everywhere, so that the
// container sees its end.
func (c *container) stdinDone(ctx context.Context) {
	rec := c.snapshot()
	if !rec.Request.StdinOnce || rec.Terminal || rec.StdinClosed || rec.Stage == exited {
		return
	}
	if err := c.update(func(r *record) { r.StdinClosed = true }); err != nil {
		c.server.log.Warn("the end of the input is not recorded", "container", c.id, "error", err)
	}
	c.streams.closeStdin()
	c.holdStreams(ctx)
	c.server.tellDropped(c.id, supervisor.StreamStdin)
}

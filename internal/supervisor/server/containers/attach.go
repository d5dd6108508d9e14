package containers

import (
	"context"
	"fmt"
	"io"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/server/record"
)

// Attach copies the container's output from now on to stdout and stderr, which may be nil, until
// the container or ctx ends. resume continues where an attachment stopped when the last
// supervisor died. Attach calls joined once, when the output is joined. It returns nil when the
// container has ended.
func (c *Container) Attach(ctx context.Context, stdout, stderr io.Writer, resume bool, joined func() error) error {
	pump, err := c.output(ctx)
	if pump == nil || err != nil {
		return err
	}
	subscribe := pump.Subscribe
	if resume {
		subscribe = pump.Resubscribe
	}
	sub, err := subscribe(stdout, stderr)
	if err != nil {
		return fmt.Errorf("cannot attach to container %s: %w", c.id, err)
	}
	defer sub.Close()
	if err := joined(); err != nil {
		return fmt.Errorf("cannot attach to container %s: the client is gone: %w", c.id, err)
	}
	select {
	case <-sub.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := sub.Err(); err != nil {
		return fmt.Errorf("cannot attach to container %s: %w", c.id, err)
	}
	if !isClosed(c.ended) {
		return fmt.Errorf("supervisor is stopping: %w", errs.Unavailable)
	}
	return nil
}

// output returns the log pump of the container, once the container is adopted; nil when it had ended
// before this process began.
func (c *Container) output(ctx context.Context) (*logpump.Pump, error) {
	for waited := false; ; waited = true {
		c.mu.Lock()
		pump, stage := c.pump, c.rec.Stage
		c.mu.Unlock()
		switch {
		case stage == record.Creating:
			return nil, fmt.Errorf("cannot attach to container %s: its creation did not end: %w", c.id, errs.State)
		case pump != nil || stage == record.Exited || waited:
			return pump, nil
		}
		if err := c.lock(ctx); err != nil {
			return nil, err
		}
		c.unlock()
	}
}

// StdinDone closes the input of a StdinOnce container here, in the keeper and at the clients, so that
// the container sees its end.
func (c *Container) StdinDone(ctx context.Context) {
	rec := c.snapshot()
	if !rec.Request.StdinOnce || rec.Terminal || rec.StdinClosed || rec.Stage == record.Exited {
		return
	}
	if err := c.update(func(r *record.Container) { r.StdinClosed = true }); err != nil {
		c.set.log.Warn("cannot record the end of the input", "container", c.id, "error", err)
	}
	c.streams.CloseStdin()
	c.holdStreams(ctx)
	c.set.opts.Clients.Drop(c.id, supervisor.StreamStdin)
}

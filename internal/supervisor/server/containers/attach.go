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

// Attachment is what one client wants of a container.
type Attachment struct {
	// Stdout and Stderr get the output from now on; nil for one that the client does not want.
	Stdout, Stderr io.Writer
	// Input: the client writes to the container's input.
	Input bool
	// Resume continues where an attachment stopped when the last supervisor died.
	Resume bool
	// Joined is called once, when the output is joined.
	Joined func() error
}

// Attach copies the container's output to a client until the container or ctx ends. It returns nil when the
// container has ended. Kind State when the client has input, and the container's was lost.
func (c *Container) Attach(ctx context.Context, a *Attachment) error {
	pump, err := c.output(ctx)
	if pump == nil || err != nil {
		return err
	}
	if a.Input && (c.Lacks(supervisor.StreamTerminal) || c.Lacks(supervisor.StreamStdin)) {
		return fmt.Errorf("cannot attach to the input of container %s: all processes of berth that held it have died; "+
			"attach without input, or restart the container: %w", c.id, errs.State)
	}
	subscribe := pump.Subscribe
	if a.Resume {
		subscribe = pump.Resubscribe
	}
	sub, err := subscribe(a.Stdout, a.Stderr)
	if err != nil {
		return fmt.Errorf("cannot attach to container %s: %w", c.id, err)
	}
	defer sub.Close()
	if err := a.Joined(); err != nil {
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

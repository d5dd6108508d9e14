package server

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// start lets a created container's init execute the user's program. A repeated start
// waits for the first one. The error says only why: the daemon adds that the container
// cannot be started.
func (c *container) start(ctx context.Context) (pid int, err error) {
	ctx, stop := context.WithTimeout(ctx, timeout(c.snapshot().Request.StartTimeout))
	defer stop()
	if err := c.begin(ctx); err != nil {
		return 0, err
	}
	defer c.end()
	rec := c.snapshot()
	switch rec.Stage {
	case running:
		return rec.Init.Pid, nil
	case exited:
		if !rec.Exit.StartFailed {
			return rec.Init.Pid, nil
		}
		return 0, fmt.Errorf("%s: %w", rec.Exit.Message, errs.State)
	case creating:
		return 0, fmt.Errorf("its creation did not end: %w", errs.State)
	}
	pidfd, err := c.live()
	if err != nil {
		return 0, fmt.Errorf("its init has ended: %w", errs.State)
	}
	// Between the FIFO's opening and its being held this process must not become the
	// keeper: the init would find nobody to write to.
	leave, err := c.server.enterFork(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	done := c.beginStart()
	defer done()
	if err := c.update(func(r *record) { r.Stage = starting }); err != nil {
		return 0, err
	}
	err = c.server.runtime.Start(ctx, c.starter(ctx, pidfd))
	return rec.Init.Pid, c.started(ctx, err)
}

// starter is what the runtime needs to know of this container, whose start ends with ctx.
func (c *container) starter(ctx context.Context, pidfd *os.File) *ociruntime.Starting {
	return &ociruntime.Starting{
		ID:    c.id,
		Pidfd: pidfd,
		Ended: c.ended,
		Hold: func(fifo *os.File) error {
			// The caller closes its own, also when this process is about to
			// become the keeper.
			own, err := sysfd.Duplicate(fifo)
			if err != nil {
				return err
			}
			c.server.vault.hold(ctx, c.key("start"), own)
			set := supervisor.StreamSet{ID: c.id, Names: []string{supervisor.StreamStart}}
			c.server.others(nil, func(ss *session) {
				// What is on its way is held by the socket.
				if err := ss.conn.Note(supervisor.NoteHold, set, fifo); err != nil {
					c.server.log.Warn("a client does not hold a start", "container", c.id, "error", err)
				}
			})
			return nil
		},
	}
}

// dropStart lets go of what Hold was given.
func (c *container) dropStart() {
	held := c.server.vault.get(c.key("start"))
	c.server.vault.release(c.key("start"))
	closeFiles(held)
	c.server.tellDropped(c.id, supervisor.StreamStart)
}

// beginStart keeps the exit from being recorded before it is known whether the
// program was executed.
func (c *container) beginStart() (done func()) {
	ch := make(chan struct{})
	c.mu.Lock()
	c.starting = ch
	c.mu.Unlock()
	return func() { close(ch) }
}

// started ends a start of the runtime's that returned err.
func (c *container) started(ctx context.Context, err error) error {
	if err != nil && c.server.stopping.Err() != nil {
		return fmt.Errorf("%w: %w", err, errs.Unavailable) // a successor brings it to its end
	}
	defer c.dropStart()
	if err == nil {
		return c.update(func(r *record) { r.Stage = running })
	}
	// Neither waiting nor running: its exit comes as any other's.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer stop()
	return errors.Join(err, c.snapshot().Cgroups.Kill(ctx))
}

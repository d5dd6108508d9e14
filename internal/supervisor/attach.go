package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// Attach connects streams to a container until it ends (nil), ctx ends
// (ctx.Err()), or a stream fails. The end of Stdin alone does not end it. Output
// begins with what the container writes after the call. A client that falls too far
// behind is dropped (Exhausted).
//
// It survives the supervisor's death: the next one is attached to. What the dying one
// had read and not yet given away is in the log and missing here; nothing comes twice.
func (c *Client) Attach(ctx context.Context, id string, streams Streams) error {
	p := newPlumbing(ctx)
	defer p.close()
	if err := p.readers(streams); err != nil {
		return err
	}
	joined, err := p.joined(streams)
	if err != nil {
		return err
	}
	call := AttachCall{ID: id, Files: p.names, Stdin: streams.Stdin != nil}
	if terminal := c.link.held.get(id, StreamTerminal); terminal != nil {
		go resize(p.ctx, terminal, streams.Resize)
		if streams.Stdin != nil {
			go func() {
				if joined() {
					p.input(terminal, streams.Stdin, nil)
				}
			}()
		}
	} else if streams.Stdin != nil {
		if err := c.attachInput(p, id, streams.Stdin, joined); err != nil {
			return err
		}
	}
	err = c.attachToEnd(p, call)
	p.closeTheirs()
	if err != nil {
		return errors.Join(p.failure(), err)
	}
	return p.finish(ctx)
}

// attachToEnd stays attached over the deaths of supervisors.
func (c *Client) attachToEnd(p *plumbing, call AttachCall) error {
	for {
		lost := c.link.call(p.ctx, MethodAttach, call, nil, p.theirs...)
		if !errors.Is(lost, wire.ErrLost) || p.ctx.Err() != nil {
			return lost
		}
		short, stop := context.WithTimeout(p.ctx, comeBack)
		_, err := c.link.await(short)
		stop()
		if err != nil {
			return lost // nobody came back
		}
		call.Resume = true
	}
}

// attachInput writes the client's input into the container's once the output is
// joined, and says when it has ended.
func (c *Client) attachInput(p *plumbing, id string, from io.Reader, joined func() bool) error {
	stdin := c.link.held.get(id, StreamStdin)
	if stdin == nil {
		return fmt.Errorf("container %s has no input, or it was closed: %w", id, errs.State)
	}
	go func() {
		if !joined() {
			return
		}
		p.input(stdin, from, func() {
			if err := c.link.repeat(p.ctx, MethodStdinDone, Ref{id}, nil); err != nil {
				p.fail(err)
			}
		})
	}()
	return nil
}

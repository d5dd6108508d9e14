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
// (ctx.Err()), or a stream fails. The end of Stdin alone does not end it. If
// the container has no input, or its input was closed, Attach reads Stdin and drops it.
// Without Stdout and Stderr it then returns State. So it does when the input was lost, because
// all who held it died. Output begins with what the
// container writes after the call. A client that falls too far behind is dropped
// (Exhausted).
//
// It survives the death of the supervisor: it attaches to the next one. Output that the dead
// supervisor had read and not sent is in the log and missing here. Nothing is sent twice.
func (c *Client) Attach(ctx context.Context, id string, streams Streams) error {
	p := newPlumbing(ctx)
	defer p.close()
	if err := p.readers(streams); err != nil {
		return err
	}
	joining, err := p.joining(streams)
	if err != nil {
		return err
	}
	if err := c.link.awaitStreams(ctx); err != nil {
		return fmt.Errorf("cannot attach to container %s: its streams have not come from the supervisor yet: %w", id, err)
	}
	call := AttachCall{ID: id, Files: p.names, Stdin: streams.Stdin != nil}
	if terminal := c.link.held.get(id, StreamTerminal); terminal != nil {
		go resize(p.ctx, terminal, streams.Resize)
		if err := c.attachInput(p, id, StreamTerminal, streams, joining); err != nil {
			return err
		}
	} else if err := c.attachInput(p, id, StreamStdin, streams, joining); err != nil {
		return err
	}
	err = c.attachToEnd(p, call, joining)
	p.closeTheirs()
	if err != nil {
		return errors.Join(p.failure(), err)
	}
	return p.finish(ctx)
}

// attachToEnd stays attached when supervisors die.
func (c *Client) attachToEnd(p *plumbing, call AttachCall, joining *joining) error {
	for {
		lost := c.link.call(p.ctx, MethodAttach, call, nil, p.theirs...)
		if !errors.Is(lost, wire.ErrLost) || p.ctx.Err() != nil {
			return lost
		}
		short, stop := context.WithTimeout(p.ctx, restartTimeout)
		_, err := c.link.await(short)
		stop()
		if err != nil {
			return lost // no supervisor came back
		}
		call.Resume = joining.done()
	}
}

// attachInput writes the client's input, if there is any, to the container's once the output
// is joined, and reports its end to the supervisor, but for a terminal, whose input has none.
// It stops when the client leaves, whether the container reads or not.
func (c *Client) attachInput(p *plumbing, id, name string, streams Streams, joining *joining) error {
	if streams.Stdin == nil {
		return nil
	}
	to, err := c.link.held.openInlet(p.ctx, id, name)
	if err != nil {
		return fmt.Errorf("cannot attach to the input of container %s: %w", id, err)
	}
	if to == nil {
		if streams.Stdout == nil && streams.Stderr == nil {
			return fmt.Errorf("container %s has no input, or it was closed: %w", id, errs.State)
		}
		go p.input(io.Discard, streams.Stdin, nil) // input that nobody reads holds up the client's other streams
		return nil
	}
	p.keep(to)
	var ended func()
	if name == StreamStdin {
		ended = func() {
			if err := c.link.repeat(p.ctx, MethodStdinDone, Ref{id}, nil); err != nil {
				p.fail(err)
			}
		}
	}
	go func() {
		if joining.wait() {
			p.input(to, streams.Stdin, ended)
		}
	}()
	return nil
}

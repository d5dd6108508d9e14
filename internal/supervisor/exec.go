package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/wire"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// restartTimeout is how long an exec waits for the next supervisor, which has its exit code.
const restartTimeout = 30 * time.Second

// Exec runs a process in a running container and returns its exit code (128+n
// when signal n ended it) when it has ended and its output is written to
// streams. Children that outlive it with the output open do not delay it.
// When ctx ends first, everything that the process started is killed and
// ctx.Err() is returned. errs.Invalid when the program could not be executed,
// errs.State when the container is not running. It survives the supervisor's
// death where the exit code can still be found; otherwise errs.Unavailable.
func (c *Client) Exec(ctx context.Context, req *ExecRequest, streams Streams) (code int32, err error) {
	call := ExecCall{ExecRequest: *req}
	if call.ExecID == "" {
		call.ExecID = newID()
	}
	if req.Process == nil {
		return 0, fmt.Errorf("exec %q without a process: %w", call.ExecID, errs.Invalid)
	}
	p := newPlumbing(ctx)
	defer p.close()
	if req.Process.Terminal {
		err = p.terminal(streams)
	} else {
		err = p.pipes(streams)
	}
	if err != nil {
		return 0, err
	}
	call.Files = p.names
	var result ExecResult
	if err := c.execOnce(p, call, &result); err != nil {
		return 0, errors.Join(p.failure(), err)
	}
	p.closeTheirs()
	return result.Code, p.finish(ctx)
}

// execOnce runs the exec exactly once, also when supervisors die: the next supervisor has the
// exit code of an exec that the last one ran, and runs one that the last one did not start.
func (c *Client) execOnce(p *plumbing, call ExecCall, result *ExecResult) error {
	for {
		lost := c.link.callToEnd(p.ctx, MethodExec, call, result, p.theirs...)
		if !errors.Is(lost, wire.ErrLost) || p.ctx.Err() != nil {
			return lost
		}
		err := c.execAgain(p.ctx, ExecRef{call.ContainerID, call.ExecID}, result)
		switch {
		case errors.Is(err, errs.NotFound):
			continue // it did not begin
		case errors.Is(err, context.DeadlineExceeded) && p.ctx.Err() == nil:
			return lost // no supervisor came back
		}
		return err
	}
}

// execAgain gets the exit code of an exec that an earlier supervisor ran from the next ones.
func (c *Client) execAgain(ctx context.Context, ref ExecRef, result *ExecResult) error {
	for {
		short, stop := context.WithTimeout(ctx, restartTimeout)
		_, err := c.link.await(short)
		stop()
		if err == nil {
			err = c.link.callToEnd(ctx, MethodExecWait, ref, result)
		}
		if !errors.Is(err, wire.ErrLost) || ctx.Err() != nil {
			return err
		}
	}
}

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// terminal gives the exec a socket to which it sends the master of its pty.
func (p *plumbing) terminal(streams Streams) error {
	receiver, sender, err := sysfd.FDSocket()
	if err != nil {
		return err
	}
	p.send(FileConsole, sender)
	p.keep(receiver)
	p.outputs.Go(func() {
		fd, err := sysfd.PeekFD(p.ctx, receiver)
		if err != nil {
			return // the error of the call says why there is none
		}
		master, err := sysfd.NewTerminal(fd)
		if err != nil {
			p.fail(err)
			return
		}
		p.keep(master)
		go resize(p.ctx, master, streams.Resize)
		if streams.Stdin != nil {
			go p.input(master, streams.Stdin, nil)
		}
		p.output(master, streams.Stdout)
	})
	return nil
}

// resize applies sizes until there are no more.
func resize(ctx context.Context, terminal *os.File, sizes <-chan TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			if err := sysfd.ResizeTerminal(terminal, size.Width, size.Height); err != nil {
				return // closed
			}
		}
	}
}

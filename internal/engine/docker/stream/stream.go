// Package stream copies streams between clients and the hijacked connections of a Docker
// Engine.
package stream

import (
	"context"
	"errors"
	"io"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine"
)

// DetachKeys replace the engine's ctrl-p ctrl-q, which would disconnect clients that send
// these keys to the program.
const DetachKeys = "ctrl-@,ctrl-^,ctrl-@,ctrl-_,ctrl-@,ctrl-^"

// Streams are those of a client. Nil ones are not connected.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
}

// Copy copies between a client and a connection to the Docker Engine until the output
// ends or ctx does. It closes the connection.
func Copy(ctx context.Context, conn client.HijackedResponse, s Streams) error {
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	defer conn.Close()
	if s.Stdin != nil {
		go func() {
			// A client that ends its input leaves the output open.
			_, _ = io.Copy(conn.Conn, s.Stdin)
			_ = conn.CloseWrite()
		}()
	}
	stdout, stderr := orDiscard(s.Stdout), orDiscard(s.Stderr)
	var err error
	if s.TTY {
		_, err = io.Copy(stdout, conn.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// ForwardSizes calls resize with each size of a terminal until ctx ends.
func ForwardSizes(ctx context.Context, sizes <-chan engine.TerminalSize, resize func(context.Context, engine.TerminalSize) error) {
	for sizes != nil {
		select {
		case size, open := <-sizes:
			if !open {
				return
			}
			_ = resize(ctx, size) // the program may have ended
		case <-ctx.Done():
			return
		}
	}
}

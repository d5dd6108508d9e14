// Package stream copies streams between clients and the hijacked connections of a Docker
// Engine.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// DetachKeys replace the engine's ctrl-p ctrl-q, which would disconnect clients that send
// these keys to the program.
const DetachKeys = "ctrl-@,ctrl-^,ctrl-@,ctrl-_,ctrl-@,ctrl-^"

// Streams are those of a client. Nil ones are not connected.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	// EndInput says that the program's input ends with that of the client. Where the program's
	// input stays open, which it also does with a terminal, the engine would close the output.
	EndInput bool
	// Ended is closed when the program has ended. What the engine still holds of its output is
	// read at once then, because the engine drops it after two seconds.
	Ended <-chan struct{}
	// Silence is how long the engine may deliver nothing after Ended before the output counts as
	// whole: a child of the program may hold it open. 0 waits for the engine.
	Silence time.Duration
	// MayFallBehind is how many bytes of the output the client may not have read before it is dropped. 0:
	// the program waits for the client, and so does whatever else gets its output.
	MayFallBehind int
}

// lateMax bounds how long output is read after the end of a program whose child writes on.
const lateMax = 5 * time.Second

// errFull ends the reading of an output that a child of an ended program fills faster than the client
// reads it. What the program itself has written is in what is held: see heldAfterEnd.
var errFull = errors.New("a child of the program writes on")

// errBehind is the end of the output of a client that was dropped.
var errBehind = fmt.Errorf("client fell behind the container and was dropped: it has not read megabytes of output: %w", errs.Exhausted)

// Copy copies between a client and a connection to the Docker Engine until the output
// ends and is delivered, or ctx ends. It closes the connection. Kind Exhausted when output was
// dropped because the client reads too slowly. For a client that may fall behind, Copy does not
// wait for a Write under way when ctx ends or the client is dropped.
func Copy(ctx context.Context, conn client.HijackedResponse, s Streams) error {
	held := newBuffer(s.MayFallBehind)
	dropped, drop := context.WithCancelCause(ctx)
	defer drop(nil)
	stop := context.AfterFunc(ctx, func() {
		conn.Close()
		held.finish(ctx.Err())
	})
	defer stop()
	defer conn.Close()
	defer held.abandon()
	if s.Stdin != nil {
		go sendInput(conn, s)
	}
	over := make(chan struct{})
	defer close(over)
	go awaitEnd(conn, held, s, over)
	go func() {
		if err := receive(conn, held, s); errors.Is(err, errBehind) {
			drop(err)
		}
	}()
	copied := make(chan error, 1)
	go func() { copied <- deliver(held, s) }()
	var leave <-chan struct{} // nil where the program waits for the client, and so does Copy
	if s.MayFallBehind > 0 {
		leave = dropped.Done()
	}
	var err error
	select {
	case err = <-copied:
	case <-leave:
		err = context.Cause(dropped)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// deliver writes the output to the client until its end.
func deliver(held *buffer, s Streams) (err error) {
	stdout, stderr := orDiscard(s.Stdout), orDiscard(s.Stderr)
	if s.TTY {
		_, err = io.Copy(stdout, held)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, held)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// sendInput sends a client's input. A client that ends its input leaves the output open.
func sendInput(conn client.HijackedResponse, s Streams) {
	_, _ = io.Copy(conn.Conn, s.Stdin) // the program or the client may have ended
	if s.EndInput {
		_ = conn.CloseWrite()
	}
}

// awaitEnd lets receive read all that is left, once the program has ended.
func awaitEnd(conn client.HijackedResponse, held *buffer, s Streams, over <-chan struct{}) {
	select {
	case <-s.Ended: // never when it is nil
	case <-over:
		return
	}
	held.programEnded()
	if s.Silence > 0 {
		// It wakes a read under way. The silence itself begins in receive: a read that begins after
		// its deadline returns nothing, not even what has arrived.
		_ = conn.Conn.SetReadDeadline(time.Now())
	}
}

// receive reads the output from the engine until its end, which it returns: io.EOF, or why the output is not whole.
func receive(conn client.HijackedResponse, held *buffer, s Streams) error {
	chunk := make([]byte, 32<<10)
	woken := false     // by awaitEnd
	var last time.Time // when late output ends, zero while the program runs
	for {
		n, err := conn.Reader.Read(chunk)
		if n > 0 {
			if _, writeErr := held.Write(chunk[:n]); writeErr != nil {
				conn.Close() // nothing more is read
				if errors.Is(writeErr, errFull) {
					writeErr = io.EOF
				}
				held.finish(writeErr)
				return writeErr
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && woken: // silent for long enough
			err = io.EOF
		case errors.Is(err, os.ErrDeadlineExceeded):
			woken = true
			err = conn.Conn.SetReadDeadline(time.Now().Add(s.Silence))
		case err == nil && s.Silence > 0 && IsClosed(s.Ended):
			now := time.Now()
			if last.IsZero() {
				last = now.Add(lateMax)
			}
			if now.After(last) {
				err = io.EOF
				break
			}
			err = conn.Conn.SetReadDeadline(now.Add(s.Silence))
		}
		if err != nil {
			held.finish(err)
			return err
		}
	}
}

// IsClosed reports whether a channel without values is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
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

package stream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine/docker/stream"
	"github.com/berthrun/berth/internal/errs"
)

// connect returns both ends of a connection: the client's as the moby client has it, and the
// engine's.
func connect(t *testing.T) (client.HijackedResponse, *net.UnixConn) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return client.NewHijackedResponse(dialed, ""), accepted.(*net.UnixConn)
}

// TestTerminalKeepsItsOutput: the end of a client's input does not end the output of a terminal.
func TestTerminalKeepsItsOutput(t *testing.T) {
	conn, engine := connect(t)
	var out bytes.Buffer
	copied := make(chan error, 1)
	go func() {
		copied <- stream.Copy(t.Context(), conn, stream.Streams{Stdin: strings.NewReader("in"), Stdout: &out, TTY: true})
	}()
	input := make([]byte, 2)
	if _, err := io.ReadFull(engine, input); err != nil || string(input) != "in" {
		t.Fatalf("%q, %v", input, err)
	}
	if _, err := engine.Write([]byte("out")); err != nil {
		t.Fatal(err)
	}
	if err := engine.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-copied; err != nil || out.String() != "out" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// held is a client that reads nothing until it is released. begun is closed with its first read.
type held struct {
	bytes.Buffer
	once    sync.Once
	begun   chan struct{}
	release <-chan struct{}
}

func (h *held) Write(p []byte) (int, error) {
	h.once.Do(func() { close(h.begun) })
	<-h.release
	return h.Buffer.Write(p)
}

// TestOutputAfterTheEndIsReadAtOnce: the engine drops what nobody reads after the end, so it is
// read while the client is still busy.
func TestOutputAfterTheEndIsReadAtOnce(t *testing.T) {
	conn, engine := connect(t)
	release, ended := make(chan struct{}), make(chan struct{})
	slow := &held{begun: make(chan struct{}), release: release}
	copied := make(chan error, 1)
	go func() {
		copied <- stream.Copy(t.Context(), conn, stream.Streams{Stdout: struct{ io.Writer }{slow}, TTY: true, Ended: ended})
	}()
	output := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	written := make(chan error, 1)
	go func() {
		_, err := engine.Write(output)
		written <- errors.Join(err, engine.CloseWrite())
	}()
	<-slow.begun
	close(ended)
	if err := <-written; err != nil { // the client has read nothing
		t.Fatal(err)
	}
	close(release)
	if err := <-copied; err != nil {
		t.Fatal(err)
	}
	if got := slow.Bytes(); !bytes.Equal(got, output) {
		t.Errorf("%d bytes of %d", len(got), len(output))
	}
}

// TestChildThatWritesOn: a child of an ended program writes more than a client that reads nothing may make
// berth hold. The output of the program is whole, and ends.
func TestChildThatWritesOn(t *testing.T) {
	conn, engine := connect(t)
	release, ended := make(chan struct{}), make(chan struct{})
	close(ended)
	slow := &held{begun: make(chan struct{}), release: release}
	copied := make(chan error, 1)
	go func() {
		copied <- stream.Copy(t.Context(), conn, stream.Streams{Stdout: struct{ io.Writer }{slow}, TTY: true, Ended: ended})
	}()
	for chunk := make([]byte, 1<<20); ; {
		if _, err := engine.Write(chunk); err != nil { // berth has closed the connection
			break
		}
	}
	close(release)
	const atEnd = 1 << 20 // in the engine's buffers when the program ended
	if err := <-copied; err != nil || slow.Len() < atEnd {
		t.Errorf("%d bytes, %v", slow.Len(), err)
	}
}

// TestAClientThatReadsNothingIsDropped: a client that is behind as far as it may be does not keep Copy, nor what is held for
// it, although its connection takes nothing. A client that has left does not either.
func TestAClientThatReadsNothingIsDropped(t *testing.T) {
	for name, behind := range map[string]bool{"behind": true, "left": false} {
		conn, engine := connect(t)
		release := make(chan struct{})
		slow := &held{begun: make(chan struct{}), release: release}
		ctx, leave := context.WithCancel(t.Context())
		copied := make(chan error, 1)
		go func() {
			copied <- stream.Copy(ctx, conn, stream.Streams{Stdout: struct{ io.Writer }{slow}, TTY: true, MayFallBehind: 64 << 10})
		}()
		want := context.Canceled
		if _, err := engine.Write([]byte("one")); err != nil {
			t.Fatal(err)
		}
		<-slow.begun
		if behind {
			want = errs.Exhausted
			for chunk := make([]byte, 1<<20); ; {
				if _, err := engine.Write(chunk); err != nil { // berth has closed the connection
					break
				}
			}
		} else {
			leave()
		}
		select {
		case err := <-copied:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the copy waits for the client", name)
		}
		close(release)
		leave()
	}
}

// lateReader begins its first read only when the first deadline has passed, as a goroutine that gets
// no processor does.
type lateReader struct {
	net.Conn
	first    sync.Once
	deadline chan time.Time
}

func (l *lateReader) SetReadDeadline(at time.Time) error {
	select {
	case l.deadline <- at:
	default:
	}
	return l.Conn.SetReadDeadline(at)
}

func (l *lateReader) Read(p []byte) (int, error) {
	l.first.Do(func() { <-time.After(time.Until(<-l.deadline)) })
	return l.Conn.Read(p)
}

// TestOutputIsReadLate: what has arrived is delivered, however late it is read.
func TestOutputIsReadLate(t *testing.T) {
	conn, engine := connect(t)
	late := &lateReader{Conn: conn.Conn, deadline: make(chan time.Time, 1)}
	ended := make(chan struct{})
	close(ended)
	if _, err := engine.Write([]byte("tail")); err != nil {
		t.Fatal(err)
	}
	if err := engine.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := stream.Copy(t.Context(), client.NewHijackedResponse(late, ""), stream.Streams{Stdout: &out, TTY: true, Ended: ended, Silence: time.Second})
	if err != nil || out.String() != "tail" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestOutputOfAChild: a child that holds the output open delays nothing: the engine never closes it here.
func TestOutputOfAChild(t *testing.T) {
	conn, engine := connect(t)
	ended := make(chan struct{})
	out := &seen{begun: make(chan struct{})}
	copied := make(chan error, 1)
	go func() {
		copied <- stream.Copy(t.Context(), conn, stream.Streams{Stdout: out, TTY: true, Ended: ended, Silence: time.Millisecond})
	}()
	if _, err := engine.Write([]byte("begun")); err != nil {
		t.Fatal(err)
	}
	<-out.begun
	close(ended)
	if err := <-copied; err != nil || out.String() != "begun" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// seen is an output; begun is closed with its first bytes.
type seen struct {
	strings.Builder
	once  sync.Once
	begun chan struct{}
}

func (s *seen) Write(p []byte) (int, error) {
	defer s.once.Do(func() { close(s.begun) })
	return s.Builder.Write(p)
}

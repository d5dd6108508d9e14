package stream_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/engine/docker/stream"
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

// TestTerminalKeepsItsOutput: the end of a client's input is no end of a terminal.
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

// held is a client that reads nothing until it is released.
type held struct {
	bytes.Buffer
	release <-chan struct{}
}

func (h *held) Write(p []byte) (int, error) {
	<-h.release
	return h.Buffer.Write(p)
}

// TestOutputAfterTheEndIsReadAtOnce: the engine drops what nobody reads after the end, so it is
// read while the client is still busy; before the end it is not, as memory has a limit.
func TestOutputAfterTheEndIsReadAtOnce(t *testing.T) {
	conn, engine := connect(t)
	release, ended := make(chan struct{}), make(chan struct{})
	client := struct{ io.Writer }{&held{release: release}}
	copied := make(chan error, 1)
	go func() {
		copied <- stream.Copy(t.Context(), conn, stream.Streams{Stdout: client, TTY: true, Ended: ended})
	}()
	output := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	written := make(chan error, 1)
	go func() {
		_, err := engine.Write(output)
		written <- errors.Join(err, engine.CloseWrite())
	}()
	close(ended)
	if err := <-written; err != nil { // the client has read nothing
		t.Fatal(err)
	}
	close(release)
	if err := <-copied; err != nil {
		t.Fatal(err)
	}
	if got := client.Writer.(*held).Bytes(); !bytes.Equal(got, output) {
		t.Errorf("%d bytes of %d", len(got), len(output))
	}
}

// TestOutputOfAChild: a child that holds the output open delays nothing.
func TestOutputOfAChild(t *testing.T) {
	conn, engine := connect(t)
	ended := make(chan struct{})
	close(ended)
	if _, err := engine.Write([]byte("begun")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := stream.Copy(t.Context(), conn, stream.Streams{Stdout: &out, TTY: true, Ended: ended, Silence: 100 * time.Millisecond})
	if err != nil || out.String() != "begun" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// attached is the fake's answer to an attach: the client joins at once, and stays until it
// disconnects.
func attached(ctx context.Context, req *wire.Request) error {
	var call AttachCall
	if err := req.Decode(&call); err != nil {
		return err
	}
	for i, name := range call.Files {
		if name == FileJoined {
			if _, err := req.Files[i].Write([]byte{1}); err != nil {
				return err
			}
		}
		req.Files[i].Close()
	}
	<-ctx.Done()
	return ctx.Err()
}

// heldInput passes the input of container x to the client to hold, and returns the container's end.
func heldInput(t *testing.T, f *fake, c *Client) *os.File {
	t.Helper()
	container, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { container.Close() })
	if err := f.conn().Note(NoteHold, StreamSet{ID: "x", Names: []string{StreamStdin}}, ours); err != nil {
		t.Fatal(err)
	}
	ours.Close()
	if _, err := c.List(t.Context()); err != nil { // handles the note first
		t.Fatal(err)
	}
	return container
}

// client is a client attached to container x.
type client struct {
	words *io.PipeWriter
	leave context.CancelFunc
	left  chan error
}

func attachTo(t *testing.T, c *Client) *client {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	in, words := io.Pipe()
	cl := &client{words: words, leave: leave, left: make(chan error, 1)}
	go func() { cl.left <- c.Attach(ctx, "x", Streams{Stdin: in}) }()
	t.Cleanup(func() { leave(); words.Close() })
	return cl
}

// fillInput writes until the pipe is full, and returns the number of bytes.
func fillInput(t *testing.T, c *Client) int {
	t.Helper()
	raw, err := c.link.held.get("x", StreamStdin).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	filled := 0
	err = raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Write(int(fd), make([]byte, 4096))
			if err != nil {
				return
			}
			filled += n
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return filled
}

// lent returns how many inlets of a descriptor are open.
func (h *held) lent(id, name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if holding := h.files[id][name]; holding != nil {
		return len(holding.inlets)
	}
	return 0
}

// TestLeavingClientReleasesTheInput: a client disconnects while its data waits for a full pipe. The
// data is dropped, and blocks no other client.
func TestLeavingClientReleasesTheInput(t *testing.T) {
	f := &fake{}
	c := connect(t, f.serve(t))
	container := heldInput(t, f, c)
	filled := fillInput(t, c)

	first := attachTo(t, c)
	if _, err := first.words.Write([]byte("late ")); err != nil { // waits for the pipe
		t.Fatal(err)
	}
	first.leave()
	if err := <-first.left; !errors.Is(err, context.Canceled) {
		t.Fatalf("attach ended with %v", err)
	}
	second := attachTo(t, c)
	if _, err := second.words.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(container, make([]byte, filled)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("second"))
	if _, err := io.ReadFull(container, got); err != nil || !bytes.Equal(got, []byte("second")) {
		t.Errorf("the container reads %q, %v", got, err)
	}
	second.leave()
	<-second.left
	if lent := c.link.held.lent("x", StreamStdin); lent != 0 {
		t.Errorf("%d descriptors are left of clients that left", lent)
	}
}

// TestAttachWithoutAnInput: a client that offers input gets the output of a container that takes none. What the client
// sends is read: its connection does not stall. A client that wants no output has nothing to attach to.
func TestAttachWithoutAnInput(t *testing.T) {
	f := &fake{}
	c := connect(t, f.serve(t))
	ctx, leave := context.WithCancel(t.Context())
	in, words := io.Pipe()
	left := make(chan error, 1)
	go func() { left <- c.Attach(ctx, "x", Streams{Stdin: in, Stdout: io.Discard}) }()
	sent := make(chan error, 1)
	go func() {
		_, err := words.Write([]byte("nobody hears this"))
		sent <- err
	}()
	select {
	case err := <-left:
		t.Fatalf("the attachment has ended: %v", err)
	case err := <-sent:
		if err != nil {
			t.Fatal(err)
		}
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("attach ended with %v", err)
	}
	words.Close()
	if err := c.Attach(t.Context(), "x", Streams{Stdin: in}); !errors.Is(err, errs.State) {
		t.Errorf("to the input alone: %v", err)
	}
}

// TestInputOpenOnceEndsForAll: when the supervisor requests the end of an input, no attached client
// keeps it open, not even one with pending data.
func TestInputOpenOnceEndsForAll(t *testing.T) {
	f := &fake{}
	c := connect(t, f.serve(t))
	container := heldInput(t, f, c)
	filled := fillInput(t, c)

	for range 2 {
		if _, err := attachTo(t, c).words.Write([]byte("stuck")); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.conn().Note(NoteDrop, StreamSet{ID: "x", Names: []string{StreamStdin}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.List(t.Context()); err != nil { // handles the note first
		t.Fatal(err)
	}
	got, err := io.ReadAll(container)
	if err != nil || len(got) != filled {
		t.Errorf("the container reads %d bytes of %d, %v", len(got), filled, err)
	}
}

// TestOnlyWhatWasJoinedIsResumed: the supervisor dies while it answers an attach. The next one gets the call again. A client whose
// output was not joined yet has used nothing of the container: as long as it says so, its refusal ends no input of others.
func TestOnlyWhatWasJoinedIsResumed(t *testing.T) {
	for name, joins := range map[string]bool{"joined": true, "not joined": false} {
		t.Run(name, func(t *testing.T) {
			f, calls := &fake{}, make(chan AttachCall, 2)
			f.attach = func(_ context.Context, req *wire.Request) error {
				var call AttachCall
				if err := req.Decode(&call); err != nil {
					return err
				}
				for i, name := range call.Files {
					if name == FileJoined && joins {
						if _, err := req.Files[i].Write([]byte{1}); err != nil {
							return err
						}
					}
					req.Files[i].Close()
				}
				calls <- call
				if len(calls) == 1 {
					f.conn().Close()
				}
				return nil
			}
			c := connect(t, f.serve(t))
			in, words := io.Pipe()
			defer words.Close()
			if err := c.Attach(t.Context(), "x", Streams{Stdin: in, Stdout: io.Discard}); err != nil {
				t.Fatal(err)
			}
			if first, second := <-calls, <-calls; first.Resume || second.Resume != joins {
				t.Errorf("the calls resume: %v, %v", first.Resume, second.Resume)
			}
		})
	}
}

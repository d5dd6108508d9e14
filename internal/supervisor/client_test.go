package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// fake is a minimal supervisor.
type fake struct {
	protocol int
	mu       sync.Mutex
	conns    []*wire.Conn
	hellos   []Hello
	offered  map[string]int
	calls    int
	// die is the number of calls to list that end the connection in place of an answer.
	die int
	// streams is what the supervisor has of container x, nil for one that knows no MethodStreams.
	streams *os.File
	// attach answers an attach in the place of attached, nil for none.
	attach func(ctx context.Context, req *wire.Request) error
}

func (f *fake) HandleNote(*wire.Request) {}

func (f *fake) HandleCall(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	if req.Method == MethodAttach {
		if f.attach != nil {
			return nil, f.attach(ctx, req)
		}
		return nil, attached(ctx, req)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch req.Method {
	case MethodHello:
		var h Hello
		if err := req.Decode(&h); err != nil {
			return nil, err
		}
		f.hellos = append(f.hellos, h)
		if f.protocol > ProtocolVersion+1 {
			return nil, fmt.Errorf("too old: %w", errs.Unsupported)
		}
		return &wire.Reply{Body: Welcome{Protocol: ProtocolVersion, Want: h.Held}}, nil
	case MethodOffer:
		var set StreamSet
		if err := req.Decode(&set); err != nil {
			return nil, err
		}
		for i, name := range set.Names {
			if _, err := req.Files[i].Stat(); err == nil {
				f.offered[set.ID+"/"+name]++
			}
			req.Files[i].Close()
		}
		return nil, nil
	case MethodStreams:
		if f.streams == nil {
			break
		}
		set := StreamSet{ID: "x", Names: []string{StreamStdout}}
		return &wire.Reply{}, f.conns[len(f.conns)-1].Note(NoteHold, set, f.streams)
	case MethodList, MethodSignal:
		f.calls++
		if f.die > 0 {
			f.die--
			f.conns[len(f.conns)-1].Close()
			return nil, nil
		}
		if req.Method == MethodSignal {
			return nil, nil
		}
		return &wire.Reply{Body: []Container{{ID: "x", State: Running}}}, nil
	}
	return nil, fmt.Errorf("call %q: %w", req.Method, errs.Unsupported)
}

// conn is the latest connection.
func (f *fake) conn() *wire.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conns[len(f.conns)-1]
}

func (f *fake) serve(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f.offered = make(map[string]int)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			sock, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := wire.New(sock, f)
			f.mu.Lock()
			f.conns = append(f.conns, conn)
			f.mu.Unlock()
			go conn.Serve(context.Background())
		}
	}()
	return path
}

func connect(t *testing.T, socket string) *Client {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	c, err := Connect(ctx, Options{Socket: socket, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestClientReconnectsAndRepeats(t *testing.T) {
	f := &fake{die: 3}
	c := connect(t, f.serve(t))
	list, err := c.List(t.Context())
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || len(list) != 1 || f.calls != 4 || len(f.hellos) != 4 {
		t.Errorf("%v %v after %d calls over %d connections", list, err, f.calls, len(f.hellos))
	}
}

// The supervisor dies while the client sends a stop signal. The container gets the signal all the
// same.
func TestInterruptedSignalIsSentAgain(t *testing.T) {
	f := &fake{die: 1}
	c := connect(t, f.serve(t))
	err := c.Signal(t.Context(), "x", syscall.SIGTERM, false)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || f.calls != 2 {
		t.Errorf("%v after %d calls", err, f.calls)
	}
}

func TestClientOffersWhatItHolds(t *testing.T) {
	f := &fake{}
	c := connect(t, f.serve(t))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	f.conn().Note(NoteHold, StreamSet{ID: "x", Names: []string{StreamStdout}}, r)
	r.Close()
	if _, err := c.List(t.Context()); err != nil { // handles the note first
		t.Fatal(err)
	}
	f.conn().Close()
	if _, err := c.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	offers := f.offered["x/"+StreamStdout]
	f.mu.Unlock()
	if offers != 1 {
		t.Errorf("offered %d times", offers)
	}
	f.conn().Note(NoteDrop, StreamSet{ID: "x"})
	if _, err := c.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held := c.link.held.names(); len(held) != 0 {
		t.Errorf("still held: %v", held)
	}
}

// A start lists containers before it gets their streams. Who attaches waits for them.
func TestStreamsComeAfterWhatIsMoreUrgent(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, f := range map[string]*fake{
		"a supervisor":            {streams: r},
		"one that dies":           {streams: r, die: 1},
		"one of an older version": {},
	} {
		t.Run(name, func(t *testing.T) {
			after := make(chan struct{})
			c, err := Connect(t.Context(), Options{Socket: f.serve(t), Logger: slog.New(slog.DiscardHandler), After: after})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.List(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			for _, hello := range f.hellos {
				if !hello.Later {
					t.Error("the client asks for the streams at once")
				}
			}
			f.mu.Unlock()
			if held := c.link.held.names(); len(held) != 0 {
				t.Errorf("held before its time: %v", held)
			}
			gone, stop := context.WithCancel(t.Context())
			stop()
			if err := c.Attach(gone, "x", Streams{Stdout: io.Discard}); !errors.Is(err, context.Canceled) {
				t.Errorf("attached before the streams are there, by a client that does not wait: %v", err)
			}
			close(after)
			if err := c.link.awaitStreams(t.Context()); err != nil {
				t.Fatal(err)
			}
			if held := c.link.held.get("x", StreamStdout); (held != nil) != (f.streams != nil) {
				t.Errorf("held: %v", held)
			}
		})
	}
}

func TestClientOfANewerSupervisorIsRefused(t *testing.T) {
	f := &fake{protocol: ProtocolVersion + 2}
	_, err := Connect(t.Context(), Options{Socket: f.serve(t), Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, errs.Unsupported) {
		t.Errorf("%v", err)
	}
}

func TestConnectWithoutSupervisorEndsWithContext(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	_, err := Connect(ctx, Options{Socket: filepath.Join(t.TempDir(), "none"), Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errs.Unavailable) {
		t.Errorf("%v", err)
	}
}

func TestCallOnAClosedClient(t *testing.T) {
	c := connect(t, (&fake{}).serve(t))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.List(t.Context()); !errors.Is(err, errs.Unavailable) {
		t.Errorf("%v", err)
	}
}

// TestFinishDoesNotWaitForOtherWriters: existing output is delivered. Finish does not wait for what
// another process may write later.
func TestFinishDoesNotWaitForOtherWriters(t *testing.T) {
	var out bytes.Buffer
	p := newPlumbing(t.Context())
	defer p.close()
	if err := p.readers(Streams{Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	kept := p.theirs[0]
	p.theirs = nil
	defer kept.Close()
	want := bytes.Repeat([]byte("x"), 40_000)
	if _, err := kept.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := p.finish(t.Context()); err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%d bytes, %v", out.Len(), err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriterThatFailsEndsAll(t *testing.T) {
	p := newPlumbing(t.Context())
	defer p.close()
	if err := p.readers(Streams{Stdout: failing{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.theirs[0].WriteString("x"); err != nil {
		t.Fatal(err)
	}
	<-p.ctx.Done()
	if err := p.failure(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%v", err)
	}
}

package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"golang.org/x/sync/errgroup"
)

// peer answers "echo" with its body and files, "kind" with an error of that kind,
// "fault" with one that has its body as path, "gone" after it has closed the connection, and "hang" when its context ends.
type peer struct {
	mu    sync.Mutex
	notes []string
	hung  chan struct{}
	ended chan error
	sent  chan bool
	conn  *Conn
}

func newPeer() *peer {
	return &peer{hung: make(chan struct{}, 8), ended: make(chan error, 8), sent: make(chan bool, 8)}
}

func (p *peer) HandleCall(ctx context.Context, req *Request) (*Reply, error) {
	var text string
	if err := req.Decode(&text); err != nil {
		return nil, err
	}
	switch req.Method {
	case "echo":
		return &Reply{Body: text, Files: req.Files, After: func(bool) { closeAll(req.Files) }}, nil
	case "kind":
		for _, k := range errs.Kinds() {
			if k.Error() == text {
				return nil, fmt.Errorf("cannot do a thing: %w", k)
			}
		}
		return nil, errors.New("no kind")
	case "fault":
		return nil, fmt.Errorf("cannot do a thing: %w", &errs.Fault{
			Cause: errs.CauseMount, Path: text, Err: fmt.Errorf("no such place: %w", errs.Invalid),
		})
	case "gone": // the connection ends before the answer is sent
		p.conn.Close()
		return &Reply{Body: text, After: func(sent bool) { p.sent <- sent }}, nil
	case "panic":
		panic(text)
	case "hang":
		p.hung <- struct{}{}
		<-ctx.Done()
		p.ended <- context.Cause(ctx)
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("method %q: %w", req.Method, errs.Unsupported)
}

func (p *peer) HandleNote(req *Request) {
	var text string
	if req.Decode(&text) == nil {
		p.mu.Lock()
		p.notes = append(p.notes, text)
		p.mu.Unlock()
	}
	closeAll(req.Files)
}

func pair(t *testing.T) (*Conn, *Conn, *peer, *peer) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	pa, pb := newPeer(), newPeer()
	a, b := New(dialed, pa), New(accepted, pb)
	pa.conn, pb.conn = a, b
	go a.Serve(context.Background())
	go b.Serve(context.Background())
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b, pa, pb
}

func TestBothSidesCallAtOnce(t *testing.T) {
	a, b, _, _ := pair(t)
	var g errgroup.Group
	for i := range 200 {
		conn := a
		if i%2 == 1 {
			conn = b
		}
		g.Go(func() error {
			in, out := strings.Repeat(fmt.Sprint(i), i*100), ""
			r, w, err := os.Pipe()
			if err != nil {
				return err
			}
			defer r.Close()
			files, err := conn.Call(t.Context(), "echo", in, &out, w)
			w.Close()
			if err != nil || out != in || len(files) != 1 {
				return fmt.Errorf("call %d: %w, %d files, equal %v", i, err, len(files), out == in)
			}
			fmt.Fprint(files[0], i)
			files[0].Close()
			data, err := io.ReadAll(r)
			if err != nil || string(data) != fmt.Sprint(i) {
				return fmt.Errorf("call %d: another pipe came back: %q %w", i, data, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestErrorsKeepKindAndText(t *testing.T) {
	a, _, _, _ := pair(t)
	for _, k := range errs.Kinds() {
		_, err := a.Call(t.Context(), "kind", k.Error(), nil)
		if !errors.Is(err, k) || err.Error() != "cannot do a thing: "+k.Error() {
			t.Errorf("kind %v came back as %v", k, err)
		}
	}
	if _, err := a.Call(t.Context(), "kind", "", nil); err == nil || errs.Kind(err) != nil {
		t.Errorf("internal error came back as %v", err)
	}
	if _, err := a.Call(t.Context(), "echo", 7, nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("a body of another type: %v", err)
	}
}

// A panic in one call is that call's error. The connection serves the others.
func TestPanicIsTheCallsError(t *testing.T) {
	a, _, _, _ := pair(t)
	_, err := a.Call(t.Context(), "panic", "oh no", nil)
	if err == nil || errs.Kind(err) != nil || !strings.Contains(err.Error(), "oh no") {
		t.Errorf("a call that panicked: %v", err)
	}
	var text string
	if _, err := a.Call(t.Context(), "echo", "still here", &text); err != nil || text != "still here" {
		t.Errorf("the call after it: %q, %v", text, err)
	}
}

func TestErrorsKeepTheirCause(t *testing.T) {
	a, _, _, _ := pair(t)
	_, err := a.Call(t.Context(), "fault", "/a b", nil)
	var fault *errs.Fault
	if !errors.As(err, &fault) || fault.Cause != errs.CauseMount || fault.Path != "/a b" {
		t.Errorf("came back as %#v", err)
	}
	if !errors.Is(err, errs.Invalid) || err.Error() != "cannot do a thing: no such place: "+errs.Invalid.Error() {
		t.Errorf("came back as %v", err)
	}
	if _, err := a.Call(t.Context(), "kind", errs.Invalid.Error(), nil); errors.As(err, &fault) {
		t.Errorf("an error without a cause came back as %#v", err)
	}
}

// TestPeersOneVersionApart: an older peer sends neither cause nor path. A newer peer may send
// unknown causes.
func TestPeersOneVersionApart(t *testing.T) {
	for sent, cause := range map[string]errs.Cause{
		`{"kind":"invalid argument","text":"no"}`:                                "",
		`{"kind":"invalid argument","text":"no","cause":"new","path":"p","x":1}`: "new",
	} {
		var e wireError
		if err := json.Unmarshal([]byte(sent), &e); err != nil {
			t.Fatal(err)
		}
		err := decodeError(&e)
		var fault *errs.Fault
		if errors.As(err, &fault) != (cause != "") || fault != nil && fault.Cause != cause {
			t.Errorf("%s: %#v", sent, err)
		}
		if !errors.Is(err, errs.Invalid) || err.Error() != "no" {
			t.Errorf("%s: %v", sent, err)
		}
	}
}

func TestCancelReachesThePeer(t *testing.T) {
	a, _, _, pb := pair(t)
	ctx, stop := context.WithCancel(t.Context())
	go func() { <-pb.hung; stop() }()
	if _, err := a.CallToEnd(ctx, "hang", "", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if cause := <-pb.ended; !errors.Is(cause, context.Canceled) {
		t.Errorf("the peer saw %v", cause)
	}
}

func TestLostConnectionIsUnavailable(t *testing.T) {
	a, b, _, pb := pair(t)
	got := make(chan error)
	go func() {
		_, err := a.Call(context.Background(), "hang", "", nil)
		got <- err
	}()
	<-pb.hung
	b.Close()
	if err := <-got; !errors.Is(err, errs.Unavailable) {
		t.Errorf("call on a lost connection: %v", err)
	}
	if cause := <-pb.ended; !errors.Is(cause, errs.Unavailable) {
		t.Errorf("the handler saw %v", cause)
	}
	<-a.Done()
	if _, err := a.Call(context.Background(), "echo", "", nil); !errors.Is(err, errs.Unavailable) {
		t.Errorf("call on a dead connection: %v", err)
	}
}

// TestAfterReportsWhetherTheReplyWasSent: a peer that releases something after its reply must not
// do so if the connection has ended before.
func TestAfterReportsWhetherTheReplyWasSent(t *testing.T) {
	a, _, _, pb := pair(t)
	if _, err := a.Call(context.Background(), "gone", "", nil); !errors.Is(err, ErrLost) {
		t.Errorf("call whose answer has no way: %v", err)
	}
	if <-pb.sent {
		t.Error("After was told that the answer is on its way")
	}
}

func TestNotesComeInOrder(t *testing.T) {
	a, _, _, pb := pair(t)
	for i := range 100 {
		if err := a.Note("n", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Call(t.Context(), "echo", "", nil); err != nil {
		t.Fatal(err)
	}
	pb.mu.Lock()
	defer pb.mu.Unlock()
	for i, n := range pb.notes {
		if n != fmt.Sprint(i) {
			t.Fatalf("note %d is %q", i, n)
		}
	}
	if len(pb.notes) != 100 {
		t.Errorf("%d notes before the call that followed them", len(pb.notes))
	}
}

func TestGarbageEndsTheConnection(t *testing.T) {
	for name, bytes := range map[string]string{
		"huge":     "\xff\xff\xff\xff\x00\x00\x00\x00",
		"no files": "\x00\x00\x00\x02\x00\x00\x00\x01{}",
		"no json":  "\x00\x00\x00\x02\x00\x00\x00\x00xx",
	} {
		t.Run(name, func(t *testing.T) {
			a, b, _, _ := pair(t)
			if _, err := a.sock.Write([]byte(bytes)); err != nil {
				t.Fatal(err)
			}
			<-b.Done()
			if b.err == nil {
				t.Error("the connection ended without a reason")
			}
		})
	}
}

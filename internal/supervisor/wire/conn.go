package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// cancelTimeout bounds how long CallToEnd waits for the reply of a cancelled call.
const cancelTimeout = 10 * time.Second

// writeTimeout is how long a peer may not read before its connection is closed.
const writeTimeout = 30 * time.Second

// ErrLost is the error, beside its kind Unavailable, of calls whose connection ended.
var ErrLost = errors.New("connection ended")

// Request is a call or a note that the peer sent.
type Request struct {
	Method string
	body   json.RawMessage
	// Files came with it. The handler owns them.
	Files []*os.File
}

// Decode reads the request's body into v.
func (r *Request) Decode(v any) error {
	if err := json.Unmarshal(r.body, v); err != nil {
		return fmt.Errorf("cannot decode request %q: %w: %w", r.Method, err, errs.Invalid)
	}
	return nil
}

// Reply is the answer of a handler. Files are sent, and stay the handler's. After, when
// set, runs once the reply is sent (sent is true) or cannot be sent. A sent reply reaches
// a running peer, also when this process ends.
type Reply struct {
	Body  any
	Files []*os.File
	After func(sent bool)
}

// Handler answers the calls of the peer. Calls come each in a goroutine of its own,
// with a context that ends when the peer cancels or the connection does; notes
// come one by one in order, before whatever the peer sent after them, and must
// be quick.
type Handler interface {
	HandleCall(ctx context.Context, req *Request) (*Reply, error)
	HandleNote(req *Request)
}

// Conn is one connection. All methods are safe for concurrent use.
type Conn struct {
	sock    *net.UnixConn
	handler Handler

	writing sync.Mutex

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]chan result             // calls of ours
	running map[uint64]context.CancelCauseFunc // calls of the peer's

	done chan struct{}
	err  error // set before done is closed
}

type result struct {
	m     *message
	files []*os.File
}

// New takes over sock. Nothing is received before Serve.
func New(sock *net.UnixConn, handler Handler) *Conn {
	return &Conn{
		sock:    sock,
		handler: handler,
		pending: make(map[uint64]chan result),
		running: make(map[uint64]context.CancelCauseFunc),
		done:    make(chan struct{}),
	}
}

// Serve receives until the connection ends, and returns why: nil when the peer
// or Close ended it. The context of every call that the peer made derives from
// ctx.
func (c *Conn) Serve(ctx context.Context) error {
	var err error
	for err == nil {
		var m *message
		var files []*os.File
		if m, files, err = readFrame(c.sock); err == nil {
			c.dispatch(ctx, m, files)
		}
	}
	if isClosed(err) {
		err = nil
	}
	c.finish(err)
	return err
}

// Close ends the connection; Serve returns.
func (c *Conn) Close() error { return c.sock.Close() }

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

func (c *Conn) finish(err error) {
	c.sock.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for _, stop := range c.running {
		stop(fmt.Errorf("connection ended: %w", errs.Unavailable))
	}
	close(c.done)
}

func (c *Conn) dispatch(ctx context.Context, m *message, files []*os.File) {
	switch m.Kind {
	case call:
		ctx, stop := context.WithCancelCause(ctx)
		c.mu.Lock()
		c.running[m.ID] = stop
		c.mu.Unlock()
		go c.answer(ctx, m, files)
	case cancel:
		c.mu.Lock()
		stop := c.running[m.ID]
		c.mu.Unlock()
		if stop != nil {
			stop(context.Canceled)
		}
	case note:
		errs.Protect("note "+m.Method, func() { c.handler.HandleNote(&Request{Method: m.Method, body: m.Body, Files: files}) })
	case reply:
		c.mu.Lock()
		waiting := c.pending[m.ID]
		delete(c.pending, m.ID)
		c.mu.Unlock()
		if waiting == nil {
			closeAll(files)
			return
		}
		waiting <- result{m, files}
	default:
		closeAll(files)
	}
}

func (c *Conn) answer(ctx context.Context, m *message, files []*os.File) {
	var answer *Reply
	err := errs.Guard(m.Method, func() (err error) {
		answer, err = c.handler.HandleCall(ctx, &Request{Method: m.Method, body: m.Body, Files: files})
		return err
	})
	c.mu.Lock()
	c.running[m.ID](nil)
	delete(c.running, m.ID)
	c.mu.Unlock()
	out := &message{Kind: reply, ID: m.ID}
	var send []*os.File
	if answer != nil {
		send = answer.Files
	}
	if err == nil && answer != nil && answer.Body != nil {
		out.Body, err = json.Marshal(answer.Body)
	}
	if err != nil {
		out.Error, out.Body, send = encodeError(err), nil, nil
	}
	err = c.send(out, send)
	if unsendable(err) {
		_ = c.send(&message{Kind: reply, ID: m.ID, Error: encodeError(err)}, nil) // it fails only when the peer is gone
	}
	if answer != nil && answer.After != nil {
		errs.Protect(m.Method+" after its answer", func() { answer.After(err == nil) })
	}
}

// write sends a message. The error is about a message that cannot be sent, for example because
// a file of it was closed. It is nil for a connection that cannot be written to: Serve reads
// what the peer sent before, and returns the end.
func (c *Conn) write(m *message, files []*os.File) error {
	if err := c.send(m, files); unsendable(err) {
		return err
	}
	return nil
}

// unsendable reports whether a message, not the connection, is why it was not sent.
func unsendable(err error) bool {
	return errors.Is(err, os.ErrClosed) || errors.Is(err, errs.Invalid)
}

// send is write that also returns the end of the connection as an error.
func (c *Conn) send(m *message, files []*os.File) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	// A peer that does not read must not delay notes to others.
	err := c.sock.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		err = writeFrame(c.sock, m, files)
	}
	if err != nil && !unsendable(err) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		c.sock.Close() // a peer that does not read would not end it
	}
	return err
}

// Note sends a note. There is no reply that says whether it arrived.
func (c *Conn) Note(method string, body any, files ...*os.File) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("cannot encode note %q: %w", method, err)
	}
	return c.write(&message{Kind: note, Method: method, Body: data}, files)
}

// Call makes a call and decodes the reply into out (may be nil). The files stay the caller's;
// those that came with the reply become the caller's. When ctx ends the call is cancelled at the
// peer, and ctx.Err() is returned at once. An error of the peer keeps its text and kind;
// errs.Unavailable when the connection ended.
func (c *Conn) Call(ctx context.Context, method string, in, out any, files ...*os.File) ([]*os.File, error) {
	return c.call(ctx, 0, method, in, out, files)
}

// CallToEnd is Call, but when ctx ends it waits for the peer to have undone its
// work, some seconds at most.
func (c *Conn) CallToEnd(ctx context.Context, method string, in, out any, files ...*os.File) ([]*os.File, error) {
	return c.call(ctx, cancelTimeout, method, in, out, files)
}

func (c *Conn) call(ctx context.Context, linger time.Duration, method string, in, out any, files []*os.File) ([]*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("cannot encode request %q: %w", method, err)
	}
	answer := make(chan result, 1)
	c.mu.Lock()
	c.nextID++
	id := c.nextID
	c.pending[id] = answer
	c.mu.Unlock()
	if err := c.write(&message{Kind: call, ID: id, Method: method, Body: body}, files); err != nil {
		c.abandon(id, answer)
		return nil, err
	}
	select {
	case r := <-answer:
		return r.decode(method, out)
	case <-c.done:
		return c.lost(id, method, answer, out)
	case <-ctx.Done():
	}
	_ = c.write(&message{Kind: cancel, ID: id}, nil) // without files it has no error
	if linger > 0 {
		late := time.NewTimer(linger)
		defer late.Stop()
		select {
		case r := <-answer:
			closeAll(r.files)
			return nil, ctx.Err()
		case <-c.done:
		case <-late.C:
		}
	}
	c.abandon(id, answer)
	return nil, ctx.Err()
}

// abandon gives up on a reply and closes the files of one that came meanwhile.
func (c *Conn) abandon(id uint64, answer chan result) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	select {
	case r := <-answer:
		closeAll(r.files)
	default:
	}
}

// lost returns the last reply that came before the connection ended, or an error with
// ErrLost.
func (c *Conn) lost(id uint64, method string, answer chan result, out any) ([]*os.File, error) {
	select {
	case r := <-answer:
		return r.decode(method, out)
	default:
	}
	c.abandon(id, answer)
	cause := c.err
	if cause == nil {
		cause = errors.New("the peer closed it")
	}
	return nil, fmt.Errorf("%w (%w): %w", ErrLost, cause, errs.Unavailable)
}

func (r result) decode(method string, out any) ([]*os.File, error) {
	if r.m.Error != nil {
		closeAll(r.files)
		return nil, decodeError(r.m.Error)
	}
	if out != nil && len(r.m.Body) > 0 {
		if err := json.Unmarshal(r.m.Body, out); err != nil {
			closeAll(r.files)
			return nil, fmt.Errorf("cannot decode the reply to %q: %w", method, err)
		}
	}
	return r.files, nil
}

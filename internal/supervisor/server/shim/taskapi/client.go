// Package taskapi is a client of containerd's task API, which shims serve over ttrpc, and a server of
// the events that they send. It has the messages that berth needs.
//
// It does not use the API's own module: the start of every container runs the supervisor's program, and
// the initialization of those packages, with gRPC's, takes 2 ms and some megabytes. Tests compare the
// messages with those of the module.
package taskapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// namespaceKey is the key of containerd's namespace in a request.
const namespaceKey = "containerd-namespace-ttrpc"

// ErrClosed is the error of a call whose connection has ended.
var ErrClosed = errors.New("the connection has ended")

// Client is a connection to a shim. All methods are safe for concurrent use.
type Client struct {
	conn      net.Conn
	service   string
	namespace string
	// closed is closed when the connection has ended.
	closed chan struct{}

	writing sync.Mutex

	mu      sync.Mutex
	last    uint32
	waiting map[uint32]chan []byte
	ended   bool
}

// NewClient returns a client on a connection, which it closes. version is that of the task API, 2 or 3.
func NewClient(conn net.Conn, version int, namespace string) *Client {
	c := &Client{
		conn: conn, service: fmt.Sprintf("containerd.task.v%d.Task", version), namespace: namespace,
		closed: make(chan struct{}), waiting: make(map[uint32]chan []byte),
	}
	go errs.Protect("connection of a shim", c.receive)
	return c
}

// Closed is closed when the connection has ended.
func (c *Client) Closed() <-chan struct{} { return c.closed }

// Close ends the connection, and the calls under way.
func (c *Client) Close() { c.conn.Close() }

// Abort ends the connection, and the calls under way, also while another process has a descriptor of it.
func (c *Client) Abort() {
	if conn, ok := c.conn.(*net.UnixConn); ok {
		_, _ = conn.CloseRead(), conn.CloseWrite() // it may have ended
	}
	c.conn.Close()
}

func (c *Client) receive() {
	defer func() {
		c.conn.Close()
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		close(c.closed)
	}()
	reader := bufio.NewReader(c.conn)
	for {
		f, err := readFrame(reader)
		if err != nil {
			return
		}
		if f.kind != frameResponse {
			continue
		}
		c.mu.Lock()
		answer := c.waiting[f.stream]
		delete(c.waiting, f.stream)
		c.mu.Unlock()
		if answer != nil { // else the caller has left
			answer <- f.data
		}
	}
}

// call calls a method, and returns the message that answers it. The error is ErrClosed when the connection
// ends, ctx's when that ends first, and else the shim's, with its kind.
func (c *Client) call(ctx context.Context, method string, request Message) (Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stream, answer, err := c.register()
	if err != nil {
		return nil, err
	}
	defer func() {
		c.mu.Lock()
		delete(c.waiting, stream)
		c.mu.Unlock()
	}()
	body := Message{}.Text(1, c.service).Text(2, method).Embed(3, request)
	if deadline, ok := ctx.Deadline(); ok {
		body = body.Number(4, uint64(max(time.Until(deadline), time.Millisecond)))
	}
	body = body.Embed(5, Message{}.Text(1, namespaceKey).Text(2, c.namespace))
	if err := c.write(ctx, frame{stream: stream, kind: frameRequest, data: body}); err != nil {
		return nil, err
	}
	select {
	case data := <-answer:
		return decodeAnswer(data)
	case <-c.closed:
		select { // it may have answered before
		case data := <-answer:
			return decodeAnswer(data)
		default:
		}
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Client) register() (stream uint32, answer chan []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0, nil, ErrClosed
	}
	if c.last == 0 {
		c.last = 1 // streams of clients have odd ids
	} else {
		c.last += 2
	}
	answer = make(chan []byte, 1)
	c.waiting[c.last] = answer
	return c.last, answer, nil
}

// write sends a frame. A shim that does not read ends the connection: half a frame would be left.
func (c *Client) write(ctx context.Context, f frame) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetWriteDeadline(time.Now()) })
	err := writeFrame(c.conn, f)
	switch {
	case !stop():
		c.conn.Close()
		return ctx.Err()
	case err != nil:
		c.conn.Close()
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return nil
}

// decodeAnswer decodes a Response of ttrpc: a status and a payload.
func decodeAnswer(data []byte) (Message, error) {
	var payload Message
	var code uint64
	var text string
	err := Message(data).Fields(func(f Field) error {
		switch f.ID {
		case 1:
			return Message(f.Bytes).Fields(func(f Field) error {
				switch f.ID {
				case 1:
					code = f.Number
				case 2:
					text = f.Text()
				}
				return nil
			})
		case 2:
			payload = f.Bytes
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot decode the answer: %w", err)
	}
	if code != 0 {
		return nil, &Fault{Code: code, Text: text}
	}
	return payload, nil
}

// Fault is an error that a shim has answered with.
type Fault struct {
	// Code is one of gRPC's.
	Code uint64
	Text string
}

// gRPC's codes that have a kind.
const (
	codeInvalidArgument    = 3
	codeDeadlineExceeded   = 4
	codeNotFound           = 5
	codeAlreadyExists      = 6
	codeResourceExhausted  = 8
	codeFailedPrecondition = 9
	codeUnimplemented      = 12
	codeUnavailable        = 14
)

func (f *Fault) Error() string { return f.Text }

// Unwrap returns the error's kind, nil when its code has none.
func (f *Fault) Unwrap() error {
	switch f.Code {
	case codeInvalidArgument:
		return errs.Invalid
	case codeDeadlineExceeded:
		return errs.Deadline
	case codeNotFound:
		return errs.NotFound
	case codeAlreadyExists:
		return errs.Exists
	case codeResourceExhausted:
		return errs.Exhausted
	case codeFailedPrecondition:
		return errs.State
	case codeUnimplemented:
		return errs.Unsupported
	case codeUnavailable:
		return errs.Unavailable
	}
	return nil
}

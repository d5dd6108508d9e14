// Package taskapi is a client of containerd's task API, which shims serve over ttrpc, and a server of
// the events that they send. It has the messages that berth needs.
//
// It does not use the API's own module, for the reasons in docs/dependencies.md. Tests compare the messages
// with those of the module.
package taskapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	// calls are written in their order: a shim refuses a stream whose id is lower than one before.
	calls chan *call
	// closed is closed when the connection has ended.
	closed chan struct{}

	mu      sync.Mutex
	last    uint32
	waiting map[uint32]*call
}

// call is a request that waits to be written, or for its answer.
type call struct {
	body   Message
	answer chan []byte
	// stream is 0 until the request is being written. The Client's mutex guards it and left.
	stream uint32
	// left is true when the caller has given up.
	left bool
}

// NewClient returns a client on a connection, which it closes. version is that of the task API, 2 or 3.
func NewClient(conn net.Conn, version int, namespace string) *Client {
	c := &Client{
		conn: conn, service: fmt.Sprintf("containerd.task.v%d.Task", version), namespace: namespace,
		calls: make(chan *call), closed: make(chan struct{}), waiting: make(map[uint32]*call),
	}
	go errs.Protect("connection of a shim", c.receive)
	go errs.Protect("calls of a shim", c.send)
	return c
}

// Closed is closed when the connection has ended.
func (c *Client) Closed() <-chan struct{} { return c.closed }

// Close ends the connection, and the calls under way.
func (c *Client) Close() { c.conn.Close() }

// Abort ends the connection, and the calls under way, also while another process has a descriptor of it. It shuts
// down both directions in one step: when receive sees the end of one direction, it closes this descriptor.
func (c *Client) Abort() {
	if conn, ok := c.conn.(*net.UnixConn); ok {
		if raw, err := conn.SyscallConn(); err == nil {
			// An error of either call means that the connection has ended.
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
		}
	}
	c.conn.Close()
}

func (c *Client) receive() {
	defer func() {
		c.conn.Close()
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
		asked := c.waiting[f.stream]
		delete(c.waiting, f.stream)
		c.mu.Unlock()
		if asked != nil { // else the caller has left
			asked.answer <- f.data
		}
	}
}

// send writes requests, each as a whole: a caller that gives up leaves its request to it, and the connection to
// the other callers. A shim that does not read stops it until the connection ends.
func (c *Client) send() {
	for {
		select {
		case <-c.closed:
			return
		case next := <-c.calls:
			if !c.begin(next) {
				continue
			}
			if err := writeFrame(c.conn, frame{stream: next.stream, kind: frameRequest, data: next.body}); err != nil {
				c.conn.Close() // which ends receive
				return
			}
		}
	}
}

// begin gives a request its stream. It returns false when the caller has left.
func (c *Client) begin(next *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next.left {
		return false
	}
	if c.last == 0 {
		c.last = 1 // streams of clients have odd ids
	} else {
		c.last += 2
	}
	next.stream = c.last
	c.waiting[next.stream] = next
	return true
}

// leave forgets a request whose caller does not wait any more.
func (c *Client) leave(asked *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked.left = true
	delete(c.waiting, asked.stream)
}

// call calls a method of the task API. See callService.
func (c *Client) call(ctx context.Context, method string, request Message) (Message, error) {
	return c.callService(ctx, c.service, method, request)
}

// callService calls a method of a service, and returns the message that answers it. The error is ErrClosed when the
// connection ends, ctx's when that ends first, of kind Invalid when the request is longer than ttrpc allows, and else
// the shim's, with its kind: Unsupported when it does not have the service.
func (c *Client) callService(ctx context.Context, service, method string, request Message) (Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	body := Message{}.Text(1, service).Text(2, method).Embed(3, request)
	if deadline, ok := ctx.Deadline(); ok {
		body = body.Number(4, uint64(max(time.Until(deadline), time.Millisecond)))
	}
	body = body.Embed(5, Message{}.Text(1, namespaceKey).Text(2, c.namespace))
	if len(body) > maxData {
		return nil, fmt.Errorf("the request has %d bytes, and ttrpc takes %d: %w", len(body), maxData, errs.Invalid)
	}
	asked := &call{body: body, answer: make(chan []byte, 1)}
	select {
	case c.calls <- asked:
	case <-c.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case data := <-asked.answer:
		return decodeAnswer(data)
	case <-c.closed:
		select { // it may have answered before
		case data := <-asked.answer:
			return decodeAnswer(data)
		default:
		}
		return nil, ErrClosed
	case <-ctx.Done():
		c.leave(asked)
		return nil, ctx.Err()
	}
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

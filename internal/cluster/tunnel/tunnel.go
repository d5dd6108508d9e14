// Package tunnel connects to ports inside of a cluster's containers by way of the provider's Exec, where the ports of the
// provider's host are out of reach.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/cluster/provider"
)

// script connects standard input and output to a port of the container. It ends with the input, and with the connection.
// It is for bash, which connects itself: nodes have no other program for it, be they berth's or kind's.
const script = `exec 3<>"/dev/tcp/localhost/$1" 4<&0 || exit
{ cat <&4 >&3; kill "$$"; } >/dev/null 2>&1 &
exec cat <&3 4<&-`

// Dial connects to a TCP port inside of a running container. It returns before the container has connected; an error of
// that is the error of the first Read. The connection outlives ctx, and runs a program in the container until it is closed.
func Dial(ctx context.Context, p provider.Provider, node string, port int) (net.Conn, error) {
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot connect to port %d of %s: %w", port, node, err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot connect to port %d of %s: %w", port, node, err), stdin.Close(), in.Close())
	}
	c := &conn{in: in, out: out, address: address(net.JoinHostPort(node, strconv.Itoa(port))), ended: make(chan struct{})}
	command := provider.Command{Args: []string{"bash", "-c", script, "bash", strconv.Itoa(port)}, Stdin: stdin, Stdout: stdout, Raw: true}
	go func() {
		c.failed = p.Exec(context.WithoutCancel(ctx), node, command)
		close(c.ended)
		stdin.Close()
		stdout.Close()
	}()
	return c, nil
}

// conn is a connection by way of a program's standard input and output.
type conn struct {
	in, out *os.File
	address address
	// ended is closed when the program has ended. failed is its error then.
	ended  chan struct{}
	failed error
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.out.Read(b)
	if errors.Is(err, io.EOF) {
		err = c.why(err)
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.in.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		err = c.why(err)
	}
	return n, err
}

// why returns the error of the program in place of the end of its input or output, if it has failed.
func (c *conn) why(err error) error {
	select {
	case <-c.ended:
		if c.failed != nil {
			return c.failed
		}
	default:
	}
	return err
}

// Close implements net.Conn.
func (c *conn) Close() error { return errors.Join(c.in.Close(), c.out.Close()) }

func (c *conn) LocalAddr() net.Addr  { return c.address }
func (c *conn) RemoteAddr() net.Addr { return c.address }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error  { return c.out.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.in.SetWriteDeadline(t) }

// address is the name of a container with a port.
type address string

func (address) Network() string  { return "exec" }
func (a address) String() string { return string(a) }

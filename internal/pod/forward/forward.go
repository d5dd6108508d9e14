// Package forward copies between a client's stream and a port of a sandbox.
//
// It reads records and changes none.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Forwarder forwards ports of sandboxes.
type Forwarder struct {
	records *record.Store
	dial    time.Duration
}

// New returns a Forwarder. dial is how long a port may take to accept a connection.
func New(records *record.Store, dial time.Duration) *Forwarder {
	return &Forwarder{records: records, dial: dial}
}

// CheckPortForward reports whether ports of this sandbox can be forwarded now, and
// returns its full id.
func (f *Forwarder) CheckPortForward(_ context.Context, id string) (fullID string, err error) {
	rec, err := f.records.ReadySandbox(id)
	if err != nil {
		return "", fmt.Errorf("cannot forward ports: %w", err)
	}
	return rec.ID, nil
}

// PortForward copies between stream and a port on the sandbox's localhost (IPv4,
// then IPv6) until both directions have ended, one of them fails, or ctx ends.
// It closes stream.
func (f *Forwarder) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	rec, err := f.records.ReadySandbox(id)
	if err != nil {
		return errors.Join(fmt.Errorf("cannot forward ports: %w", err), stream.Close())
	}
	if port <= 0 || port > 65535 {
		return errors.Join(fmt.Errorf("cannot forward port %d: it is out of range (1-65535): %w", port, errs.Invalid), stream.Close())
	}
	netNS := ""
	if rec.Engine != nil {
		netNS = rec.Engine.NetNS
	}
	conn, err := dialLocalhost(ctx, netNS, port, f.dial)
	if err != nil {
		of := rec.Config.Get().GetMetadata()
		return errors.Join(fmt.Errorf("cannot forward port %d of pod %s/%s (sandbox %s): %w", port, of.GetNamespace(), of.GetName(), rec.ID, err), stream.Close())
	}
	return splice(ctx, stream, conn)
}

// dialLocalhost connects inside a network namespace, "" for the host's, and gives each
// address family half of timeout. The socket stays in the namespace that it was
// made in.
func dialLocalhost(ctx context.Context, netNS string, port int32, timeout time.Duration) (conn *net.TCPConn, err error) {
	dial := func() error {
		var failed [2]error
		for i, host := range []string{"127.0.0.1", "::1"} {
			// A literal address: the dial must not leave this thread, which a
			// lookup or a race of two addresses would.
			d := net.Dialer{Timeout: timeout / 2}
			c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err != nil {
				failed[i] = err
				continue
			}
			tcp, ok := c.(*net.TCPConn)
			if !ok {
				return errors.Join(fmt.Errorf("the connection to %s is not a TCP connection", host), c.Close())
			}
			conn = tcp
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		tried := fmt.Errorf("nothing accepts the connection over IPv4 (%w) or IPv6 (%w)", failed[0], failed[1])
		if hostport.Listens("udp", uint16(port)) {
			return fmt.Errorf("it is open for UDP, and only TCP is forwarded: %w: %w", errs.Unsupported, tried)
		}
		return fmt.Errorf("%w: %w", tried, errs.Unavailable)
	}
	if netNS == "" {
		err = dial()
	} else {
		err = sysns.InNetNS(netNS, dial)
	}
	return conn, err
}

// splice copies both ways. The end of one direction is passed on as a half-close
// (a client that has sent its request still gets the answer); the pod's end of
// output ends all, since nothing can come after it.
func splice(ctx context.Context, stream io.ReadWriteCloser, conn *net.TCPConn) error {
	up := make(chan error, 1)
	down := make(chan error, 1)
	go func() {
		err := errs.Guard("forwarding to a pod", func() error {
			_, err := io.Copy(conn, stream)
			return err
		})
		up <- errors.Join(err, ignoreClosed(conn.CloseWrite()))
	}()
	go func() {
		down <- errs.Guard("forwarding from a pod", func() error {
			_, err := io.Copy(stream, conn)
			return err
		})
	}()
	var err error
	select {
	case err = <-down:
	case err = <-up:
		if err == nil {
			select {
			case err = <-down:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return errors.Join(ignoreClosed(err), ignoreClosed(stream.Close()), ignoreClosed(conn.Close()))
}

// ignoreClosed returns nil for an error that only means that the other side closed first.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ENOTCONN) {
		return nil
	}
	return err
}

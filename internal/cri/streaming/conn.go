package streaming

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/sys/sysnet"
)

// An upgraded connection is out of net/http's sight, so a request's context does
// not end with its client any more. Two things tell that the client is gone: a
// read that fails, at once; and, where nobody reads because the other side of a
// session takes no input, a look at the state of the TCP connection. (A client
// that went away with more unsent input than the socket's buffers hold cannot even
// say so; then its kernel gives up after a minute or two, and keep-alive tells us.)

// goneCheck is how often the state of a connection is looked at.
const goneCheck = 2 * time.Second

// farewell is how long a connection that was taken over lasts beyond its session: the
// library leaves it open when a client does not open its streams in time.
const farewell = time.Second

// watchedListener makes watchedConns.
type watchedListener struct{ net.Listener }

func (l watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: c, gone: make(chan struct{})}, nil
}

// watchedConn closes gone when its peer is gone or it is closed.
type watchedConn struct {
	net.Conn
	gone chan struct{}
	once sync.Once
	// parting: the connection is closed but for what is still on its way, see part.
	parting atomic.Bool
	// taken: net/http does not close it any more.
	taken atomic.Bool
}

// Read implements io.Reader. A time-out is no end: net/http interrupts its own
// reading by one when a connection is taken over.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.parting.Load() {
		err = net.ErrClosed
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.markGone()
	}
	return n, err
}

// Close implements io.Closer. Of a connection that was taken over, it sees to it that
// the peer hears all that was written.
func (c *watchedConn) Close() error {
	c.markGone()
	if tcp, ok := c.Conn.(*net.TCPConn); ok && c.taken.Load() {
		return c.part(tcp)
	}
	return c.Conn.Close()
}

func (c *watchedConn) markGone() { c.once.Do(func() { close(c.gone) }) }

// peerGone asks the kernel whether the peer has closed its side.
func (c *watchedConn) peerGone() bool {
	raw, ok := c.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	gone, err := sysnet.PeerClosed(raw)
	return err != nil || gone
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, plain(c))
}

// plain is the connection below TLS.
func plain(c net.Conn) net.Conn {
	if secured, ok := c.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return c
}

// noteTaken is told by net/http that a connection is taken over.
func noteTaken(c net.Conn, state http.ConnState) {
	if watched, ok := plain(c).(*watchedConn); ok && state == http.StateHijacked {
		watched.taken.Store(true)
	}
}

// endConn closes the connection of a session that has ended.
func endConn(ctx context.Context) {
	c, ok := ctx.Value(connKey{}).(*watchedConn)
	if ok && c.taken.Load() {
		time.AfterFunc(farewell, func() { _ = c.Close() }) // closed already, as a rule
	}
}

// sessionContext returns a context that ends with the connection of the request
// that ctx belongs to.
func sessionContext(ctx context.Context) (context.Context, context.CancelFunc) {
	session, cancel := context.WithCancel(ctx)
	c, ok := ctx.Value(connKey{}).(*watchedConn)
	if !ok {
		return session, cancel
	}
	go func() {
		defer cancel()
		tick := time.NewTicker(goneCheck)
		defer tick.Stop()
		for {
			select {
			case <-c.gone:
				return
			case <-session.Done():
				return
			case <-tick.C:
				if c.peerGone() {
					return
				}
			}
		}
	}()
	return session, cancel
}

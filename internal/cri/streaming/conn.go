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

// net/http does not watch an upgraded connection, so the request's context does not end when the
// client leaves. The server notices it in two ways: a read fails at once; and, where no read is
// pending because the session takes no input, it polls the state of the TCP connection. (A client
// that leaves with more unsent input than the socket's buffers hold cannot close the connection.
// Its kernel gives up after a minute or two, and keep-alive reports that.)

// goneCheck is the interval at which the state of a connection is polled.
const goneCheck = 2 * time.Second

// A client that stays and reads nothing blocks the writes of its session. The library can neither send the status nor close
// the connection then: both need the lock that the blocked write holds. So the server closes a connection whose write
// has waited for the idle time, or for maxLinger once the session has ended.

// closeDelay is how long a hijacked connection stays open after its session: the library does
// not close it if a client does not open its streams in time.
const closeDelay = time.Second

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
	// lingering is set while the connection is closed except for output on its way; see linger.
	lingering atomic.Bool
	// hijacked is set once net/http does not close the connection any more.
	hijacked atomic.Bool
	// writing is when the write under way began, ended when the session's work ended, in nanoseconds since 1970; 0 for none.
	writing, ended atomic.Int64
}

// Read implements io.Reader. A timeout does not mean that the peer is gone: net/http uses one to
// stop its own read when a connection is hijacked.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.lingering.Load() {
		err = net.ErrClosed
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.markGone()
	}
	return n, err
}

// Write implements io.Writer.
func (c *watchedConn) Write(p []byte) (int, error) {
	c.writing.Store(time.Now().UnixNano())
	defer c.writing.Store(0)
	return c.Conn.Write(p)
}

// stuck reports whether the peer takes nothing for so long that the connection is to be closed.
func (c *watchedConn) stuck(idle time.Duration, now time.Time) bool {
	since, patience := c.writing.Load(), idle
	if since == 0 {
		return false
	}
	if ended := c.ended.Load(); ended != 0 {
		since, patience = max(since, ended), min(idle, maxLinger)
	}
	return now.Sub(time.Unix(0, since)) > patience
}

// cut closes the connection at once, also while a write waits for the peer.
func (c *watchedConn) cut() {
	c.markGone()
	_ = c.Conn.Close() // the session has logged why it ended, or the peer is gone
}

// Close implements io.Closer. It lets a hijacked connection deliver all that was written.
func (c *watchedConn) Close() error {
	c.markGone()
	if tcp, ok := c.Conn.(*net.TCPConn); ok && c.hijacked.Load() {
		return c.linger(tcp)
	}
	return c.Conn.Close()
}

func (c *watchedConn) markGone() { c.once.Do(func() { close(c.gone) }) }

// peerGone reports whether the peer has closed its side.
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

// plain returns the connection below TLS.
func plain(c net.Conn) net.Conn {
	if secured, ok := c.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return c
}

// markHijacked is the http.Server's ConnState hook.
func markHijacked(c net.Conn, state http.ConnState) {
	if watched, ok := plain(c).(*watchedConn); ok && state == http.StateHijacked {
		watched.hijacked.Store(true)
	}
}

// endConn closes the connection of a session that has ended.
func endConn(ctx context.Context) {
	c, ok := ctx.Value(connKey{}).(*watchedConn)
	if ok && c.hijacked.Load() {
		time.AfterFunc(closeDelay, func() { _ = c.Close() }) // it is usually closed already
	}
}

// markEnded notes that the work of a session has ended. From now on the client has maxLinger to take what is left.
func markEnded(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*watchedConn); ok {
		c.ended.Store(time.Now().UnixNano())
	}
}

// sessionContext returns a context that ends with the connection of the request
// that ctx belongs to. Until end is called, the connection is closed if its peer
// reads nothing: see stuck.
func sessionContext(ctx context.Context, idle time.Duration) (_ context.Context, end context.CancelFunc) {
	session, cancel := context.WithCancel(ctx)
	c, ok := ctx.Value(connKey{}).(*watchedConn)
	if !ok {
		return session, cancel
	}
	// It outlives the session's context: a peer that has closed its side may still block a write.
	handled, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer cancel()
		tick := time.NewTicker(goneCheck)
		defer tick.Stop()
		gone := c.gone
		for {
			select {
			case <-gone:
				cancel()
				gone = nil
			case <-handled.Done():
				return
			case now := <-tick.C:
				if c.peerGone() {
					cancel()
				}
				if c.stuck(idle, now) {
					c.cut()
				}
			}
		}
	}()
	return session, end
}

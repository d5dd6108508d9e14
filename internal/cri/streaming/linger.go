package streaming

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// The kernel discards unsent output when the peer sends something to a closed socket, and clients
// send pings. A slow client would lose the end of its output and the session's status, which
// kubectl takes for success.

// maxLinger is how long a peer may take to receive the end of a session.
const maxLinger = 30 * time.Second

// minLingerPoll is the first interval at which the connection is polled. It doubles up to a second.
const minLingerPoll = 5 * time.Millisecond

// linger closes the sending side and ends all reads and writes of this process. It closes the
// connection once the peer has closed its side, or after maxLinger.
func (c *watchedConn) linger(tcp *net.TCPConn) error {
	if !c.lingering.CompareAndSwap(false, true) {
		return nil
	}
	err := tcp.CloseWrite()
	if err == nil {
		err = tcp.SetDeadline(time.Unix(1, 0))
	}
	if err != nil { // the peer is gone
		if closeErr := tcp.Close(); closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
			return fmt.Errorf("cannot close the connection: %w", closeErr)
		}
		return nil
	}
	go func() {
		defer tcp.Close()
		for interval, end := minLingerPoll, time.Now().Add(maxLinger); !c.peerGone() && time.Now().Before(end); interval = min(2*interval, time.Second) {
			time.Sleep(interval)
		}
	}()
	return nil
}

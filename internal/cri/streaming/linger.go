package streaming

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// A kernel throws away what it has not sent yet when the peer sends something to a
// socket that is closed; and clients ping. One that is slow would lose the end of its
// output, and how the session ended: to a kubectl, that is success.

// maxParting is how long a peer may take to hear the last of a session.
const maxParting = 30 * time.Second

// partingLook is how often the connection is looked at in the beginning, and then ever
// more rarely.
const partingLook = 5 * time.Millisecond

// part tells the peer that nothing follows, ends the reading and writing of everybody
// here, and closes the connection when the peer has closed its side, or takes too long.
func (c *watchedConn) part(tcp *net.TCPConn) error {
	if !c.parting.CompareAndSwap(false, true) {
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
		for look, end := partingLook, time.Now().Add(maxParting); !c.peerGone() && time.Now().Before(end); look = min(2*look, time.Second) {
			time.Sleep(look)
		}
	}()
	return nil
}

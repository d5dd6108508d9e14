package criclient

import (
	"context"

	"google.golang.org/grpc/connectivity"
)

// WatchConnection waits until the runtime is connected. Then it calls changed with false when the connection has
// ended, and with true when there is one again, until ctx ends. It connects again also while there is no call.
func (c *Conn) WatchConnection(ctx context.Context, changed func(connected bool)) {
	for ever, connected := false, false; ; {
		state := c.conn.GetState()
		now := state == connectivity.Ready
		if ever && now != connected {
			changed(now)
		}
		ever, connected = ever || now, now
		if state == connectivity.Idle {
			c.conn.Connect()
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

package criclient

import (
	"context"

	"google.golang.org/grpc/connectivity"
)

// WatchConnection calls changed with true when the runtime is connected, and with false when the connection has ended,
// until ctx ends. It connects again also while there is no call. It may miss a connection that ends within moments.
func (c *Conn) WatchConnection(ctx context.Context, changed func(connected bool)) {
	for connected := false; ; {
		state := c.conn.GetState()
		now := state == connectivity.Ready
		if now != connected {
			changed(now)
		}
		connected = now
		if state == connectivity.Idle {
			c.conn.Connect()
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

package apisocket

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// ListenTCP listens on a TCP address, HOST:PORT. It waits up to lingerTimeout, or until ctx ends, for a port that is in
// use: see awaitUnserved. The error is the kernel's.
func ListenTCP(ctx context.Context, address string) (net.Listener, error) {
	deadline := time.Now().Add(lingerTimeout)
	for {
		var lc net.ListenConfig
		l, err := lc.Listen(context.WithoutCancel(ctx), "tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lingerPoll):
		}
	}
}

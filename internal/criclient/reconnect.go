package criclient

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/berthrun/berth/internal/errs"
)

// minBackoff and maxBackoff bound the time between attempts to connect. They are short: an
// attempt on a socket of this host is cheap.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// reconnectLimit bounds how long calls wait for a connection. A call to a runtime that is
// connected has no limit.
type reconnectLimit struct {
	path string
	// restart is the limit until a call fails by it. From then on calls wait for retry, which is
	// shorter, until the runtime is connected again.
	restart, retry time.Duration
	unreachable    atomic.Bool
}

func (l *reconnectLimit) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	callCtx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	go l.watch(callCtx, cc, abort)
	err := invoke(callCtx, method, req, reply, cc, opts...)
	if err == nil {
		l.unreachable.Store(false) // the call may have ended before watch noticed the connection
	}
	return callError(ctx, callCtx, err)
}

func (l *reconnectLimit) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	// The stream keeps this context. The limit applies only until the stream is open.
	callCtx, abort := context.WithCancelCause(ctx)
	openCtx, opened := context.WithCancel(callCtx)
	defer opened()
	go l.watch(openCtx, cc, abort)
	s, err := open(callCtx, desc, cc, method, opts...)
	if err != nil {
		defer abort(nil)
		return nil, callError(ctx, callCtx, err)
	}
	l.unreachable.Store(false)
	return s, nil
}

// watch aborts a call when the runtime is not connected for the limit. It returns when ctx ends.
func (l *reconnectLimit) watch(ctx context.Context, cc *grpc.ClientConn, abort context.CancelCauseFunc) {
	if cc.GetState() == connectivity.Ready {
		l.unreachable.Store(false) // it was restarted between two calls
	}
	for cc.WaitForStateChange(ctx, connectivity.Ready) {
		limit := l.restart
		if l.unreachable.Load() {
			limit = l.retry
		}
		connected := l.waitConnected(ctx, cc, limit)
		if ctx.Err() != nil {
			return
		}
		l.unreachable.Store(!connected)
		if !connected {
			abort(fmt.Errorf("nobody has answered on unix://%s for %s: the daemon has ended, and does not come back: look at its log "+
				"(under systemd: `journalctl -u berth`): %w", l.path, limit, errs.Unavailable))
			return
		}
	}
}

// waitConnected waits for a connection, at most for the limit.
func (l *reconnectLimit) waitConnected(ctx context.Context, cc *grpc.ClientConn, limit time.Duration) bool {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		state := cc.GetState()
		if state == connectivity.Ready {
			return true
		}
		if !cc.WaitForStateChange(limited, state) {
			return false
		}
	}
}

// callError returns the error of a call, or the reason why watch aborted it.
func callError(ctx, callCtx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && callCtx.Err() != nil {
		return context.Cause(callCtx)
	}
	return err
}

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

// Pauses between tries to connect to a socket of this host, which cost nothing.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// patience bounds how long calls wait for somebody to answer on a socket. What is asked of a runtime
// that answers may take any time.
type patience struct {
	path string
	// first is how long, and later what it is once a call has waited in vain (lost), until
	// the runtime answers again.
	first, later time.Duration
	lost         atomic.Bool
}

func (p *patience) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	patient, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go p.watch(patient, cc, giveUp)
	err := invoke(patient, method, req, reply, cc, opts...)
	return explained(ctx, patient, err)
}

func (p *patience) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	// The stream goes on with this context; only its beginning is watched.
	patient, giveUp := context.WithCancelCause(ctx)
	beginning, begun := context.WithCancel(patient)
	defer begun()
	go p.watch(beginning, cc, giveUp)
	s, err := open(patient, desc, cc, method, opts...)
	if err != nil {
		defer giveUp(nil)
		return nil, explained(ctx, patient, err)
	}
	return plainStream{s}, nil
}

// watch gives a call up when nobody has answered for the limit, until ctx ends.
func (p *patience) watch(ctx context.Context, cc *grpc.ClientConn, giveUp context.CancelCauseFunc) {
	if cc.GetState() == connectivity.Ready {
		p.lost.Store(false) // it came back between two calls
	}
	for cc.WaitForStateChange(ctx, connectivity.Ready) {
		limit := p.first
		if p.lost.Load() {
			limit = p.later
		}
		answers := p.answers(ctx, cc, limit)
		if ctx.Err() != nil {
			return
		}
		p.lost.Store(!answers)
		if !answers {
			giveUp(fmt.Errorf("nobody has answered on unix://%s for %s: the daemon has ended, and does not come back: look at its log "+
				"(under systemd: `journalctl -u berth`): %w", p.path, limit, errs.Unavailable))
			return
		}
	}
}

// answers waits until the runtime answers, for the limit.
func (p *patience) answers(ctx context.Context, cc *grpc.ClientConn, limit time.Duration) bool {
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

// explained is the error of a call, or why it was given up.
func explained(ctx, patient context.Context, err error) error {
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return context.Cause(patient)
	}
	return plain(err)
}

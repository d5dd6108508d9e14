package criclient

import (
	"context"
	"fmt"
	"path"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/berthrun/berth/internal/errs"
)

// LostError is the error of a call whose connection ended before the runtime answered. The call may have had an effect.
// Its kind is Unavailable.
type LostError struct {
	// Endpoint is the socket, unix:///PATH, and Call the name of the call, such as PullImage.
	Endpoint, Call string
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the connection to %s ended during %s: the daemon stopped or was restarted, and the request may have had an effect: "+
		"see what it has done, and run the command again; the daemon's log has the reason (under systemd: `journalctl -u berth`)", e.Endpoint, e.Call)
}

// Unwrap returns the kind.
func (e *LostError) Unwrap() error { return errs.Unavailable }

type answeredKey struct{}

// noteAnswers notes which calls the runtime has answered. gRPC itself reports the end of a connection with the code
// Unavailable, which a runtime uses as well. Only what a runtime sends has trailers.
type noteAnswers struct{}

// TagRPC implements stats.Handler.
func (noteAnswers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (noteAnswers) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ended := event.(*stats.InTrailer); !ended {
		return
	}
	if answered, ok := ctx.Value(answeredKey{}).(*atomic.Bool); ok {
		answered.Store(true)
	}
}

// TagConn implements stats.Handler.
func (noteAnswers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (noteAnswers) HandleConn(context.Context, stats.ConnStats) {}

// answers turns the errors of gRPC into errors for people. A call that the runtime has not answered ends with a LostError.
type answers struct{ path string }

func (a *answers) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	answered := new(atomic.Bool)
	err := invoke(context.WithValue(ctx, answeredKey{}, answered), method, req, reply, cc, opts...)
	return a.errorOf(method, answered, err)
}

func (a *answers) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	answered := new(atomic.Bool)
	s, err := open(context.WithValue(ctx, answeredKey{}, answered), desc, cc, method, opts...)
	if err != nil {
		return nil, a.errorOf(method, answered, err)
	}
	return &answeredStream{s, func(err error) error { return a.errorOf(method, answered, err) }}, nil
}

// errorOf returns the error of a call as people see it. Other errors than those of gRPC stay as they are.
func (a *answers) errorOf(method string, answered *atomic.Bool, err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() != codes.Unavailable || answered.Load() {
		return plain(err)
	}
	return &LostError{"unix://" + a.path, path.Base(method)}
}

// answeredStream is a stream whose errors are those of errorOf. Its end stays io.EOF.
type answeredStream struct {
	grpc.ClientStream
	errorOf func(error) error
}

// RecvMsg implements grpc.ClientStream.
func (s *answeredStream) RecvMsg(m any) error {
	return s.errorOf(s.ClientStream.RecvMsg(m))
}

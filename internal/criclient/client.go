// Package criclient connects to the CRI socket of berth or of another runtime. It turns the
// runtime's errors into errors of berth's kinds that have the message alone.
package criclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
)

// DefaultEndpoint is where berth listens when nothing else is configured.
const DefaultEndpoint = "unix:///run/berth/berth.sock"

// maxMessage bounds the bytes of one answer.
const maxMessage = 64 << 20

// dialTimeout bounds an attempt to connect to the socket.
const dialTimeout = 5 * time.Second

// restartTime is how long calls wait for a runtime that is restarting.
const restartTime = time.Minute

// Conn is a connection to a runtime. Calls wait for a minute for a runtime that restarts; then
// they fail with an error of kind Unavailable.
type Conn struct {
	Runtime  runtimeapi.RuntimeServiceClient
	Images   runtimeapi.ImageServiceClient
	Berth    *berthapi.Client
	Endpoint string
	conn     *grpc.ClientConn
}

// Dial connects to an endpoint, unix:///PATH or an absolute PATH. If no process listens there,
// the error (kind Unavailable) names the socket and says what to do.
func Dial(ctx context.Context, endpoint string) (*Conn, error) {
	return dial(ctx, endpoint, restartTime, 2*maxBackoff)
}

func dial(ctx context.Context, endpoint string, restart, retry time.Duration) (*Conn, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	if err := checkListening(ctx, path); err != nil {
		return nil, err
	}
	limit := &reconnectLimit{path: path, restart: restart, retry: retry}
	answers := &answers{path}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, MaxDelay: maxBackoff}, MinConnectTimeout: dialTimeout}),
		grpc.WithChainUnaryInterceptor(answers.unary, limit.unary),
		grpc.WithChainStreamInterceptor(answers.stream, limit.stream),
		grpc.WithStatsHandler(noteAnswers{}),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", endpoint, err)
	}
	return &Conn{
		Runtime:  runtimeapi.NewRuntimeServiceClient(conn),
		Images:   runtimeapi.NewImageServiceClient(conn),
		Berth:    berthapi.NewClient(conn),
		Endpoint: "unix://" + path,
		conn:     conn,
	}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

func socketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("cannot connect to %q: an endpoint is unix:///PATH: %w", endpoint, errs.Invalid)
	}
	return path, nil
}

// checkListening returns an error that says what to do if no process listens on the socket.
func checkListening(ctx context.Context, path string) error {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		conn.Close()
		return nil
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("cannot connect to unix://%s: %w: the socket is for root and its group: run this as root", path, errs.Unavailable)
	case errors.Is(err, syscall.ENOENT):
		err = errors.New("there is no such socket")
	case errors.Is(err, syscall.ECONNREFUSED):
		err = errors.New("the socket is there, but nobody listens on it")
	}
	return fmt.Errorf("cannot connect to unix://%s: %w: %w\nstart the daemon with `berth serve` (under systemd: `systemctl start berth`), "+
		"or name another CRI socket with --endpoint unix:///PATH or BERTH_ENDPOINT (crictl: -r unix:///PATH or CONTAINER_RUNTIME_ENDPOINT)", path, errs.Unavailable, err)
}

// plain turns a gRPC status into an error of the code's kind that has the message alone. It is
// the reverse of the server's table.
func plain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	kind := kindOf(s.Code())
	switch {
	case kind == nil:
		return errors.New(s.Message())
	case s.Code() == codes.Unimplemented && strings.Contains(s.Message(), "unknown service"):
		return fmt.Errorf("the runtime does not have this call: it is not berth, or its daemon is older than this program "+
			"and must be restarted: %w", kind)
	}
	return &remoteError{s.Message(), kind}
}

func kindOf(code codes.Code) error {
	switch code {
	case codes.NotFound:
		return errs.NotFound
	case codes.AlreadyExists:
		return errs.Exists
	case codes.InvalidArgument:
		return errs.Invalid
	case codes.FailedPrecondition:
		return errs.State
	case codes.Unavailable:
		return errs.Unavailable
	case codes.Unimplemented:
		return errs.Unsupported
	case codes.ResourceExhausted:
		return errs.Exhausted
	case codes.DeadlineExceeded:
		return errs.Deadline
	case codes.PermissionDenied:
		return errs.Denied
	case codes.Canceled:
		return context.Canceled
	}
	return nil
}

// remoteError has the runtime's message. The message includes the kind's text already.
type remoteError struct {
	message string
	kind    error
}

func (e *remoteError) Error() string { return e.message }

// Unwrap returns the kind.
func (e *remoteError) Unwrap() error { return e.kind }

// Reachable reports whether a process listens on the socket now.
func (c *Conn) Reachable(ctx context.Context) bool {
	return checkListening(ctx, strings.TrimPrefix(c.Endpoint, "unix://")) == nil
}

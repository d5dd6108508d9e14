package criclient

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// versions is a runtime that answers Version once let is closed.
type versions struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	let chan struct{}
}

func (v *versions) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	<-v.let
	return &runtimeapi.VersionResponse{RuntimeName: "berth"}, nil
}

// serveAt runs a runtime on a socket until stop.
func serveAt(t *testing.T, path string, v runtimeapi.RuntimeServiceServer) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, v)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // stop ends it
	}()
	return func() {
		server.Stop()
		<-ended
	}
}

// dialFor returns a connection that has the runtime's answer: the limits are too short for a connect on a busy machine.
func dialFor(t *testing.T, path string, restart time.Duration) *Conn {
	t.Helper()
	conn, err := dial(t.Context(), "unix://"+path, restart, restart/5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.conn.Connect()
	awaitState(t, conn, connectivity.Ready)
	return conn
}

// version requests the version.
func version(t *testing.T, conn *Conn) error {
	t.Helper()
	_, err := conn.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{})
	return err
}

// stopRuntime stops a runtime and waits until the connection notices.
func stopRuntime(t *testing.T, conn *Conn, stop func()) {
	t.Helper()
	if err := version(t, conn); err != nil {
		t.Fatal(err)
	}
	stop()
	conn.conn.WaitForStateChange(t.Context(), connectivity.Ready)
}

// awaitState waits for a state of the connection.
func awaitState(t *testing.T, conn *Conn, wanted connectivity.State) {
	t.Helper()
	for state := conn.conn.GetState(); state != wanted; state = conn.conn.GetState() {
		if !conn.conn.WaitForStateChange(t.Context(), state) {
			t.Fatalf("the connection is %s, not %s", state, wanted)
		}
	}
}

// TestRuntimeThatDoesNotComeBack: a call fails after the limit for a restart, later calls and
// new streams after the shorter one. Once the runtime is back, the limit is the long one again.
func TestRuntimeThatDoesNotComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	let := make(chan struct{})
	close(let)
	stop := serveAt(t, path, &versions{let: let})
	conn := dialFor(t, path, 50*time.Millisecond)
	for range 2 {
		stopRuntime(t, conn, stop)
		if err := version(t, conn); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "unix://"+path+" for 50ms:") {
			t.Errorf("a call ended with %v", err)
		}
		if err := version(t, conn); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), " for 10ms:") {
			t.Errorf("the next call ended with %v", err)
		}
		if _, err := conn.Runtime.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{}); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), " for 10ms:") {
			t.Errorf("a stream began with %v", err)
		}
		stop = serveAt(t, path, &versions{let: let})
		awaitState(t, conn, connectivity.Ready) // the client reconnects without a call
	}
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call ended with %v", err)
	}
}

// TestRuntimeThatRestarts: calls wait for a runtime that restarts, even if the call itself takes
// longer than a restart.
func TestRuntimeThatRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	let := make(chan struct{})
	close(let)
	stop := serveAt(t, path, &versions{let: let})
	conn := dialFor(t, path, time.Minute)
	stopRuntime(t, conn, stop)
	answered := make(chan error, 1)
	go func() { answered <- version(t, conn) }()
	awaitState(t, conn, connectivity.TransientFailure)
	defer serveAt(t, path, &versions{let: let})()
	if err := <-answered; err != nil {
		t.Errorf("the call that waited ended with %v", err)
	}
}

// TestSlowCall: a call to a connected runtime may take longer than the limit.
func TestSlowCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	let := make(chan struct{})
	defer serveAt(t, path, &versions{let: let})()
	const restart = 50 * time.Millisecond
	conn := dialFor(t, path, restart)
	time.AfterFunc(4*restart, func() { close(let) })
	if _, err := conn.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Errorf("a slow call ended with %v", err)
	}
}

// TestShortCallShowsThatTheRuntimeIsBack: also a call that has ended before anything watches the connection. So the next restart has
// the whole limit.
func TestShortCallShowsThatTheRuntimeIsBack(t *testing.T) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(t.TempDir(), "s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for name, call := range map[string]func(*reconnectLimit) error{
		"a call": func(l *reconnectLimit) error {
			return l.unary(t.Context(), "", nil, nil, conn, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil })
		},
		"a stream": func(l *reconnectLimit) error {
			_, err := l.stream(t.Context(), nil, conn, "", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return nil, nil
			})
			return err
		},
	} {
		l := &reconnectLimit{restart: time.Minute, retry: time.Minute}
		l.unreachable.Store(true)
		if err := call(l); err != nil || l.unreachable.Load() {
			t.Errorf("%s: %v; the runtime counts as unreachable: %v", name, err, l.unreachable.Load())
		}
	}
}

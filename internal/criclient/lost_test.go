package criclient

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// dying is a runtime whose calls end with its process, except Status, which it refuses.
type dying struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	asked chan struct{}
}

func (d *dying) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	d.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (d *dying) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	if err := stream.Send(&runtimeapi.ContainerEventResponse{}); err != nil {
		return err
	}
	d.asked <- struct{}{}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func (d *dying) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return nil, status.Error(codes.Unavailable, "the runtime is busy")
}

// TestDaemonThatDiesInACall: the error names the socket and the call, and says what to do. A runtime that answers with the
// same code has its own message.
func TestDaemonThatDiesInACall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for name, call := range map[string]func(*Conn) error{
		"Version": func(conn *Conn) error { return version(t, conn) },
		"GetContainerEvents": func(conn *Conn) error {
			stream, err := conn.Runtime.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
			for err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	} {
		d := &dying{asked: make(chan struct{}, 1)}
		stop := serveAt(t, path, d)
		conn := dialFor(t, path, time.Minute)
		if _, err := conn.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{}); err == nil || err.Error() != "the runtime is busy" || !errors.Is(err, errs.Unavailable) {
			t.Errorf("a call that the runtime refuses: %v", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- call(conn) }()
		<-d.asked
		stop()
		err := <-ended
		var lost *LostError
		if !errors.As(err, &lost) || !errors.Is(err, errs.Unavailable) || lost.Call != name || !strings.HasPrefix(err.Error(), "the connection to unix://"+path+" ended during "+name+":") {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
	}
}

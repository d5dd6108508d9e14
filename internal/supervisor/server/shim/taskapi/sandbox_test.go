package taskapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berthrun/berth/internal/errs"
)

// sandboxes is the sandbox API of containerd's own modules. It answers with what it was asked.
type sandboxes struct {
	sandbox.TTRPCSandboxService
	shim
}

func (s *sandboxes) CreateSandbox(ctx context.Context, r *sandbox.CreateSandboxRequest) (*sandbox.CreateSandboxResponse, error) {
	return &sandbox.CreateSandboxResponse{}, s.answer(ctx, r)
}

func (s *sandboxes) StartSandbox(ctx context.Context, r *sandbox.StartSandboxRequest) (*sandbox.StartSandboxResponse, error) {
	return &sandbox.StartSandboxResponse{Pid: 4711, CreatedAt: timestamppb.New(s.exited), Spec: &anypb.Any{TypeUrl: "u"}}, s.answer(ctx, r)
}

func (s *sandboxes) SandboxStatus(ctx context.Context, r *sandbox.SandboxStatusRequest) (*sandbox.SandboxStatusResponse, error) {
	return &sandbox.SandboxStatusResponse{
		SandboxID: r.SandboxID, Pid: 4711, State: SandboxReady, Info: map[string]string{"a": "b"}, CreatedAt: timestamppb.New(s.exited),
	}, s.answer(ctx, r)
}

func (s *sandboxes) WaitSandbox(ctx context.Context, r *sandbox.WaitSandboxRequest) (*sandbox.WaitSandboxResponse, error) {
	return &sandbox.WaitSandboxResponse{ExitStatus: 137, ExitedAt: timestamppb.New(s.exited)}, s.answer(ctx, r)
}

func (s *sandboxes) StopSandbox(ctx context.Context, r *sandbox.StopSandboxRequest) (*sandbox.StopSandboxResponse, error) {
	return &sandbox.StopSandboxResponse{}, s.answer(ctx, r)
}

func (s *sandboxes) ShutdownSandbox(ctx context.Context, r *sandbox.ShutdownSandboxRequest) (*sandbox.ShutdownSandboxResponse, error) {
	return &sandbox.ShutdownSandboxResponse{}, s.answer(ctx, r)
}

func serveSandboxes(t *testing.T, s *sandboxes) *Client {
	t.Helper()
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	sandbox.RegisterTTRPCSandboxService(server, s)
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(context.Background(), listener)
	t.Cleanup(func() { server.Close() })
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(conn, 3, "space")
	t.Cleanup(c.Close)
	return c
}

// TestSandboxCalls: the sandbox API of containerd's modules understands every call, and its answers are understood.
func TestSandboxCalls(t *testing.T) {
	s := &sandboxes{shim: shim{got: make(chan proto.Message, 1), exited: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}}
	c := serveSandboxes(t, s)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	for _, tc := range []struct {
		call func() error
		want proto.Message
	}{
		{func() error {
			return c.CreateSandbox(ctx, &Sandbox{ID: "id", Bundle: "/b", Config: Any("url", []byte("value")), NetNS: "/n", Annotations: map[string]string{"a": "1", "b": ""}})
		}, &sandbox.CreateSandboxRequest{
			SandboxID: "id", BundlePath: "/b", Options: &anypb.Any{TypeUrl: "url", Value: []byte("value")}, NetnsPath: "/n", Annotations: map[string]string{"a": "1", "b": ""},
		}},
		{func() error {
			pid, err := c.StartSandbox(ctx, "id")
			if err == nil && pid != 4711 {
				err = fmt.Errorf("pid %d", pid)
			}
			return err
		}, &sandbox.StartSandboxRequest{SandboxID: "id"}},
		{func() error {
			st, err := c.SandboxState(ctx, "id")
			if err == nil && *st != (SandboxState{"id", 4711, SandboxReady}) {
				err = fmt.Errorf("state %+v", st)
			}
			return err
		}, &sandbox.SandboxStatusRequest{SandboxID: "id"}},
		{func() error {
			e, err := c.WaitSandbox(ctx, "id")
			if err == nil && (e.Code != 137 || !e.At.Equal(s.exited)) {
				err = fmt.Errorf("exit %+v", e)
			}
			return err
		}, &sandbox.WaitSandboxRequest{SandboxID: "id"}},
		{func() error { return c.StopSandbox(ctx, "id") }, &sandbox.StopSandboxRequest{SandboxID: "id"}},
		{func() error { return c.ShutdownSandbox(ctx, "id") }, &sandbox.ShutdownSandboxRequest{SandboxID: "id"}},
	} {
		if err := tc.call(); err != nil {
			t.Errorf("%T: %v", tc.want, err)
			continue
		}
		if got := <-s.got; !proto.Equal(got, tc.want) {
			t.Errorf("the shim got %v, want %v", got, tc.want)
		}
		if s.namespace != "space" {
			t.Errorf("namespace %q", s.namespace)
		}
	}
}

// TestNoSandboxService: a shim without the sandbox API is found out by the kind of its error.
func TestNoSandboxService(t *testing.T) {
	c, _ := serve(t, endedShim{})
	if err := c.CreateSandbox(t.Context(), &Sandbox{ID: "id"}); !errors.Is(err, errs.Unsupported) {
		t.Errorf("error %v", err)
	}
}

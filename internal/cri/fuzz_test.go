package cri

import (
	"context"
	"log/slog"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/scrub"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// FuzzRequests: whatever bytes come as a request, its call refuses it or hands on
// what can be recorded, never panics (which would be code Internal), and answers in
// a text that gRPC can carry.
func FuzzRequests(f *testing.F) {
	for i, seed := range []proto.Message{
		&runtimeapi.RunPodSandboxRequest{Config: sandboxConfig()},
		&runtimeapi.CreateContainerRequest{PodSandboxId: "s", Config: containerConfig(), SandboxConfig: sandboxConfig()},
		&runtimeapi.ExecSyncRequest{ContainerId: "c", Cmd: []string{"ls", "-l"}, Timeout: 3},
		&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true},
		&runtimeapi.AttachRequest{ContainerId: "c", Stdout: true, Stderr: true},
		&runtimeapi.PortForwardRequest{PodSandboxId: "s", Port: []int32{80}},
		&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}, Auth: &runtimeapi.AuthConfig{Username: "u", Password: "p"}},
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}, Verbose: true},
		&runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.0.0.0/24"}}},
	} {
		data, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), data)
	}
	pods := &fuzzedPods{}
	server, err := New(Options{Pods: pods, Images: &fakeImages{getErr: errs.NotFound}, Streams: fakeStreams{}, Version: "1"})
	if err != nil {
		f.Fatal(err)
	}
	calls := []func(context.Context, []byte) (any, error){
		decoded(server.RunPodSandbox), decoded(server.CreateContainer), decoded(server.ExecSync),
		decoded(server.Exec), decoded(server.Attach), decoded(server.PortForward),
		decoded(server.PullImage), decoded(server.ImageStatus), decoded(server.UpdateRuntimeConfig),
	}
	guard := interceptors{log: slog.New(slog.DiscardHandler), scrub: scrub.New()}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		pods.t = t
		call := calls[int(which)%len(calls)]
		_, err := guard.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/Fuzz"},
			func(ctx context.Context, _ any) (any, error) { return call(ctx, data) })
		if code := status.Code(err); code == codes.Internal || code == codes.Unknown {
			t.Errorf("call %d: %v", which, err)
		}
		if text := status.Convert(err).Message(); !utf8.ValidString(text) {
			t.Errorf("call %d answers %q", which, text)
		}
	})
}

// decoded is a call of the server on a request as it comes over the wire.
func decoded[Req any, PtrReq interface {
	*Req
	proto.Message
}, Resp any](call func(context.Context, PtrReq) (Resp, error)) func(context.Context, []byte) (any, error) {
	return func(ctx context.Context, data []byte) (any, error) {
		req := PtrReq(new(Req))
		if proto.Unmarshal(data, req) != nil {
			return nil, nil // gRPC refuses it
		}
		return call(ctx, req)
	}
}

// fuzzedPods takes what has passed the checks.
type fuzzedPods struct {
	Pods
	t *testing.T
}

func (f *fuzzedPods) RunSandbox(_ context.Context, config *runtimeapi.PodSandboxConfig, _ string) (string, error) {
	if config.GetMetadata().GetName() == "" {
		f.t.Error("a sandbox without a name has passed")
	}
	return "id", nil
}

func (f *fuzzedPods) CreateContainer(_ context.Context, sandbox string, config *runtimeapi.ContainerConfig) (string, error) {
	if sandbox == "" || config.GetMetadata().GetName() == "" {
		f.t.Error("a container without a name, or a sandbox, has passed")
	}
	return "id", nil
}

func (f *fuzzedPods) Exec(_ context.Context, spec *engine.ExecSpec) (int32, error) {
	if spec.ContainerID == "" || len(spec.Command) == 0 {
		f.t.Errorf("an exec of %q in %q has passed", spec.Command, spec.ContainerID)
	}
	return 0, nil
}

func (f *fuzzedPods) CheckExec(_ context.Context, id string) (string, *runtimeapi.ContainerConfig, error) {
	return id, nil, nil
}

func (f *fuzzedPods) CheckPortForward(_ context.Context, id string) (string, error) { return id, nil }
func (f *fuzzedPods) SetPodCIDR(context.Context, string) error                      { return nil }

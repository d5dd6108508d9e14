package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/events"
	"github.com/berthrun/berth/internal/pod/view"
)

// pods are all rules that a Server calls.
type pods interface {
	Lifecycle
	Sessions
	View
	Events
	Node
}

// fakePods returns the answers that a test sets. A call without one panics. The interceptors turn
// the panic into an Internal error, which no test expects.
type fakePods struct {
	pods
	run       func(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error)
	stop      func(ctx context.Context, id string) error
	exec      func(ctx context.Context, spec *engine.ExecSpec) (int32, error)
	checkExec func(ctx context.Context, id string) (string, *runtimeapi.ContainerConfig, error)
	list      []*runtimeapi.PodSandbox
	info      *engine.Info
	infoErr   error
	calls     map[string]engine.CallCount
	network   error
	podCIDR   string
	// snapshotters are Options.Snapshotters.
	snapshotters map[string]string
	// platforms are Options.Platforms.
	platforms map[string]string
}

func (f *fakePods) RunSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	return f.run(ctx, config, handler)
}

func (f *fakePods) StopSandbox(ctx context.Context, id string) error { return f.stop(ctx, id) }

func (f *fakePods) Exec(ctx context.Context, spec *engine.ExecSpec) (int32, error) {
	return f.exec(ctx, spec)
}

func (f *fakePods) CheckExec(ctx context.Context, id string) (string, *runtimeapi.ContainerConfig, error) {
	return f.checkExec(ctx, id)
}

func (f *fakePods) ListSandboxes(context.Context, *runtimeapi.PodSandboxFilter) (items view.Items, err error) {
	for _, sb := range f.list {
		err = errors.Join(err, items.Append(sb))
	}
	return items, err
}

func (f *fakePods) EngineInfo(context.Context) (*engine.Info, error) { return f.info, f.infoErr }
func (f *fakePods) NRIInfo() any                                     { return nil }
func (f *fakePods) EngineCalls() map[string]engine.CallCount         { return f.calls }
func (f *fakePods) NetworkReady(context.Context) error               { return f.network }
func (f *fakePods) NetworkConfig() (config any, fault error) {
	return map[string]string{"PluginConfDir": "/etc/cni/net.d"}, errors.New("10-x.conflist: no name")
}

func (f *fakePods) NetworkInfo() map[string]string { return map[string]string{"mode": "cni"} }

func (f *fakePods) EventCounters() events.Counters { return events.Counters{} }

func (f *fakePods) SetPodCIDR(_ context.Context, cidr string) error {
	f.podCIDR = cidr
	return nil
}

// fakeImages is a store of images by reference.
type fakeImages struct {
	image.Store
	images  map[string]*image.Image
	getErr  error
	pullErr error
	auth    image.Auth
	// target is that of the last pull.
	target image.PullTarget
}

func (f *fakeImages) Get(_ context.Context, ref string) (*image.Image, error) {
	return f.images[ref], f.getErr
}

// Details finds an image by its id, as the server has found it before.
func (f *fakeImages) Details(_ context.Context, id string) (*imagespec.Image, error) {
	for _, img := range f.images {
		if img.ID == id {
			return &imagespec.Image{
				Platform: imagespec.Platform{OS: img.OS, Architecture: img.Architecture}, Config: img.Config,
				History: []imagespec.History{{CreatedBy: "COPY " + id}},
			}, nil
		}
	}
	return nil, fmt.Errorf("image %q: %w", id, errs.NotFound)
}

func (f *fakeImages) Pull(_ context.Context, ref string, auth image.Auth, _ func(image.Progress)) (string, error) {
	f.auth = auth
	return "sha256:" + ref, f.pullErr
}

func (f *fakeImages) PullFor(ctx context.Context, target image.PullTarget, ref string, auth image.Auth, report func(image.Progress)) (string, error) {
	f.target = target
	return f.Pull(ctx, ref, auth, report)
}

func (f *fakeImages) Remove(context.Context, string) error { return f.getErr }

func (f *fakeImages) Usage(context.Context) (image.DiskUsage, error) {
	usage := []image.Usage{{Mountpoint: "/var/lib/berth", Bytes: 7, Inodes: 3, At: time.Unix(1, 0)}}
	return image.DiskUsage{Images: usage, Containers: usage}, nil
}

// fakeStreams returns the id that it was called with.
type fakeStreams struct{}

func (fakeStreams) ExecURL(req *runtimeapi.ExecRequest) (string, error) {
	return "http://exec/" + req.ContainerId, nil
}

func (fakeStreams) AttachURL(req *runtimeapi.AttachRequest) (string, error) {
	return "http://attach/" + req.ContainerId, nil
}

func (fakeStreams) PortForwardURL(req *runtimeapi.PortForwardRequest) (string, error) {
	return "http://portforward/" + req.PodSandboxId, nil
}

// client serves the fakes on a socket for the test's time and dials it.
func client(t *testing.T, p pods, images image.Store, log *slog.Logger) *grpc.ClientConn {
	t.Helper()
	var snapshotters, platforms func() map[string]string
	if f, ok := p.(*fakePods); ok {
		snapshotters = func() map[string]string { return f.snapshotters }
		platforms = func() map[string]string { return f.platforms }
	}
	s, err := New(Options{
		Snapshotters: snapshotters, Platforms: platforms,
		Lifecycle: p, Sessions: p, View: p, Events: p, Node: p, Images: images, Streams: fakeStreams{}, Version: "1.2.3",
		Instance: map[string]string{"name": "default"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	server := NewGRPCServer(log, nil, nil)
	s.Register(server)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSendBytes)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// sandboxRequest returns a valid sandbox config.
func sandboxRequest() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "u-1"},
		Hostname:     "web",
		LogDirectory: "/var/log/pods/ns_web_u-1",
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"svc.local"}, Options: []string{"ndots:5"}},
		PortMappings: []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080}, {}},
	}
}

// Package cri serves CRI v1: RuntimeService and ImageService.
//
// It checks the shape of a request, calls the rules (package pod) and the image store, and
// converts their results into messages. It decides nothing about pods and keeps no state. It is
// the only package of the daemon that uses gRPC codes.
package cri

import (
	"context"
	"errors"
	"log/slog"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/cri/cadvisor"
	"github.com/berthrun/berth/internal/cri/scrub"
	"github.com/berthrun/berth/internal/cri/streaming"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/events"
	"github.com/berthrun/berth/internal/pod/view"
)

// Largest messages, in bytes. A request is small. Lists of a full node are not: the kubelet accepts
// 16 MiB, other clients more.
const (
	maxRecvBytes = 16 << 20
	maxSendBytes = 64 << 20
)

// Lifecycle makes, changes and removes sandboxes and containers. pod.Sandboxes and
// pod.Containers implement it and document it.
type Lifecycle interface {
	RunSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (id string, err error)
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
	UpdateSandbox(ctx context.Context, id string, overhead, res *runtimeapi.LinuxContainerResources) error

	CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig) (id string, err error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, timeout int64) error
	RemoveContainer(ctx context.Context, id string) error
	UpdateContainer(ctx context.Context, id string, res *runtimeapi.LinuxContainerResources) error
	CheckpointContainer(ctx context.Context, id, location string, timeout int64) error
	CheckpointSandbox(ctx context.Context, id, dir string, containerIDs []string) error
	RestoreSandbox(ctx context.Context, req *runtimeapi.RestorePodRequest) (id string, restored []*runtimeapi.RestoredContainer, err error)
}

// Sessions connect clients to processes in containers. pod.Sessions and forward.Forwarder
// implement it and document it.
type Sessions interface {
	streaming.Runtime

	CheckExec(ctx context.Context, id string) (fullID string, config *runtimeapi.ContainerConfig, err error)
	CheckPortForward(ctx context.Context, id string) (fullID string, err error)
	ReopenContainerLog(ctx context.Context, id string) error
}

// View shows sandboxes and containers. view.View and view.CAdvisor implement it and document
// it.
type View interface {
	SandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error)
	ListSandboxes(ctx context.Context, filter *runtimeapi.PodSandboxFilter) (view.Items, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatus, map[string]string, error)
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) (view.Items, error)

	ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error)
	ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error)
	PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error)
	ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error)
	Figures(ctx context.Context) ([]view.PodFigures, error)
}

// Events publishes what happens to sandboxes and containers. view.EventSource implements it
// and documents it.
type Events interface {
	Events() (*events.Subscription, error)
	EventCounters() events.Counters
}

// Node is what pods run on: the engine and the network. pod.Service implements it and
// documents it.
type Node interface {
	EngineInfo(ctx context.Context) (*engine.Info, error)
	EngineCalls() map[string]engine.CallCount
	// NRIInfo is for verbose status, nil when NRI is off.
	NRIInfo() any
	NetworkReady(ctx context.Context) error
	NetworkInfo() map[string]string
	NetworkConfig() (config any, fault error)
	SetPodCIDR(ctx context.Context, cidr string) error
}

// Streams makes the URLs of exec, attach and port-forward. streaming.Server
// implements it.
type Streams interface {
	ExecURL(req *runtimeapi.ExecRequest) (string, error)
	AttachURL(req *runtimeapi.AttachRequest) (string, error)
	PortForwardURL(req *runtimeapi.PortForwardRequest) (string, error)
}

// Images is the part of image.Store that the calls of ImageService need.
type Images interface {
	Pull(ctx context.Context, ref string, auth image.Auth, progress func(image.Progress)) (id string, err error)
	Get(ctx context.Context, ref string) (*image.Image, error)
	Details(ctx context.Context, ref string) (*imagespec.Image, error)
	List(ctx context.Context) ([]image.Image, error)
	Remove(ctx context.Context, ref string) error
	Usage(ctx context.Context) (image.DiskUsage, error)
}

// Options configure a Server. All but Snapshotters, Config, Pools, Page, Reload, Metrics and Log are required.
type Options struct {
	Lifecycle Lifecycle
	Sessions  Sessions
	View      View
	Events    Events
	Node      Node
	Images    Images
	Streams   Streams
	// Snapshotters returns the proxy snapshotters by the runtime handlers that have one, "" for the default handler. Nil
	// means none.
	Snapshotters func() map[string]string
	// Platforms returns the platforms by the runtime handlers that have one; see image.ParsePlatform. Nil means none.
	Platforms func() map[string]string
	// Version is berth's version, which the call Version returns.
	Version string
	// Config returns the configuration in use, for verbose Status; it must hold
	// no secrets. Nil leaves it out.
	Config func() any
	// Instance names this berth among those on the host, and its directories, for verbose Status: name,
	// root, state.
	Instance map[string]string
	// Pools returns what is made ahead, for verbose Status. Nil, or no pool, leaves it out.
	Pools func() []figures.Pool
	// Page returns where the node page is served, for verbose Status. Nil leaves it out.
	Page func() any
	// Reload returns the outcome of the last reload of the configuration, for verbose Status. Nil leaves it out.
	Reload func() any
	// Metrics are the groups of metrics of pods (package cadvisor); nil means all.
	Metrics []string
	// Log gets warnings that a response cannot carry. Nil discards them.
	Log *slog.Logger
}

// Server serves CRI calls. It returns Unimplemented for calls of a newer API.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	opts    Options
	log     *slog.Logger
	metrics *cadvisor.Set
	scrub   *scrub.Scrubber
}

// New makes a Server.
func New(opts Options) (*Server, error) {
	if opts.Lifecycle == nil || opts.Sessions == nil || opts.View == nil || opts.Events == nil || opts.Node == nil ||
		opts.Images == nil || opts.Streams == nil || opts.Version == "" {
		return nil, errors.New("cannot make a CRI server: Lifecycle, Sessions, View, Events, Node, Images, Streams and Version are required")
	}
	if opts.Metrics == nil {
		opts.Metrics = cadvisor.Groups()
	}
	if opts.Snapshotters == nil {
		opts.Snapshotters = func() map[string]string { return nil }
	}
	if opts.Platforms == nil {
		opts.Platforms = func() map[string]string { return nil }
	}
	s := &Server{opts: opts, log: opts.Log, metrics: cadvisor.New(opts.Metrics), scrub: scrub.New()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s, nil
}

// Register adds the CRI services to a gRPC server.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	runtimeapi.RegisterRuntimeServiceServer(to, s)
	runtimeapi.RegisterImageServiceServer(to, s)
}

// NewGRPCServer makes a gRPC server with the interceptors of this package: every
// request is logged once, a panic becomes an Internal error, and errors of berth's
// kinds become codes, without credentials. The interceptors recover the panics of
// handlers; errs.Guard turns those of jobs and of other goroutines into errors.
// Handlers may call apisocket.PeerPid. observer and tracer may be nil.
func NewGRPCServer(log *slog.Logger, observer Observer, tracer Tracer) *grpc.Server {
	i := interceptors{log: log, scrub: scrub.New(), observer: observer, tracer: tracer}
	return grpc.NewServer(
		grpc.Creds(apisocket.Credentials()),
		grpc.MaxRecvMsgSize(maxRecvBytes),
		grpc.MaxSendMsgSize(maxSendBytes),
		grpc.ChainUnaryInterceptor(i.unary),
		grpc.ChainStreamInterceptor(i.stream),
	)
}

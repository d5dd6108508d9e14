// Package pageserver serves the node page from the daemon's parts, as the configuration says.
package pageserver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/httpserver"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/nodepage"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/podusage"
	"github.com/berthrun/berth/internal/tlsfiles"
	"github.com/berthrun/berth/internal/version"
)

// Options are what the page shows.
type Options struct {
	Pods   *pod.Service
	Images Images
	// Jobs returns the running jobs, Stages how long stages took.
	Jobs   func() []berthapi.Job
	Stages func() []figures.Stage
	// Notices returns what the page shows at its top.
	Notices func() []string
	// Examine returns what a doctor finds; see Doctor.
	Examine func(ctx context.Context) ([]finding.Finding, error)
	// Instance names this berth among those on the host.
	Instance string
	Log      *slog.Logger
}

// Images is the part of image.Store that the page needs.
type Images interface {
	List(ctx context.Context) ([]image.Image, error)
	Usage(ctx context.Context) (image.DiskUsage, error)
}

// Server is the page and its server.
type Server struct {
	page   *nodepage.Page
	server *httpserver.Server
	log    *slog.Logger

	mu sync.Mutex
	// stop ends what the page does while it is served; nil while it is not.
	stop func()
	// state is what the last Serve has reached.
	state atomic.Pointer[State]
}

// State is where the page is served, for verbose Status.
type State struct {
	// Listen is the address, HOST:PORT with the host of the configuration. Empty: the page is not served.
	Listen string `json:"listen,omitempty"`
	TLS    bool   `json:"tls,omitempty"`
	// Auth is who may see the page: token or none.
	Auth string `json:"auth,omitempty"`
	// Fault is why the page is not served as the configuration says.
	Fault string `json:"fault,omitempty"`
}

// source has the calls of the pods in the shape of the page.
type source struct{ pods *pod.Service }

// New makes the page of a daemon. It is off until Serve.
func New(opts Options) (*Server, error) {
	node, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's name: %w", err)
	}
	pods := &source{opts.Pods}
	page, err := nodepage.New(nodepage.Source{
		Node: node, Instance: opts.Instance, Version: version.Version,
		Reading: pods.reading, Jobs: opts.Jobs, Stages: opts.Stages, Notices: opts.Notices,
		Images: opts.Images.List, Disk: opts.Images.Usage,
		LogPath: pods.logPath, Follow: pods.followEvents, Examine: opts.Examine,
	}, opts.Log)
	if err != nil {
		return nil, err
	}
	return &Server{page: page, server: httpserver.New(page, "the node page", "page.listen", opts.Log), log: opts.Log}, nil
}

// Serve serves the page as the configuration says from now on. A node does without it rather than without its pods, so a
// fault is logged.
func (s *Server) Serve(ctx context.Context, cfg *config.Daemon) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.apply(ctx, cfg)
	s.note(cfg, err)
	switch address := s.server.Address(); {
	case err == nil:
	case address != "":
		s.log.Error("the node page is served as before; mend the cause and reload the configuration", "address", address, "error", errs.Message(err))
	default:
		s.log.Error("the node page is not served; mend the cause and reload the configuration", "error", errs.Message(err))
	}
}

// State returns where the page is served. It does not wait for a Serve.
func (s *Server) State() State {
	if state := s.state.Load(); state != nil {
		return *state
	}
	return State{}
}

// note records what a Serve has reached. s.mu is held.
func (s *Server) note(cfg *config.Daemon, err error) {
	var state State
	address := s.server.Address()
	switch {
	case err != nil && address != "": // as before
		state = s.State()
		state.Fault = errs.Message(err)
	case err != nil:
		state.Fault = errs.Message(err)
	case address != "":
		state = State{Listen: listenOf(cfg.Page.Listen, address), TLS: cfg.Page.TLSCert != "", Auth: cfg.Page.Auth}
	}
	s.state.Store(&state)
}

// listenOf is the host of the configuration with the port of the address where the server listens: the configuration may
// have port 0.
func listenOf(listen, address string) string {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return listen
	}
	return net.JoinHostPort(host, port)
}

func (s *Server) apply(ctx context.Context, cfg *config.Daemon) error {
	var access nodepage.Access
	if cfg.Page.Listen != "" && cfg.Page.Auth == "token" {
		var err error
		if access.Token, err = nodepage.MakeToken(cfg.State); err != nil {
			return err
		}
	}
	if cfg.Page.TLSCert == "" {
		access.Hosts = hostsOf(cfg.Page.Listen)
	}
	if s.server.Address() == "" {
		s.page.SetAccess(&access) // before the first request
	}
	err := s.server.Apply(ctx, httpserver.Settings{
		Listen: cfg.Page.Listen,
		TLS:    tlsfiles.Files{CertFile: cfg.Page.TLSCert, KeyFile: cfg.Page.TLSKey, ClientCAFile: cfg.Page.ClientCA},
	})
	if err == nil {
		s.page.SetAccess(&access)
	}
	s.follow(ctx)
	return err
}

// hostsOf are the names by which a browser on this host reaches a loopback address.
func hostsOf(listen string) []string {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil
	}
	return []string{host, "localhost", "127.0.0.1", "::1"}
}

// follow keeps events for the page while it is served. s.mu is held.
func (s *Server) follow(ctx context.Context) {
	served := s.server.Address() != ""
	switch {
	case served && s.stop == nil:
		ctx, cancel := context.WithCancel(ctx)
		var ended sync.WaitGroup
		ended.Go(func() { s.page.FollowEvents(ctx) })
		s.stop = func() {
			cancel()
			ended.Wait()
		}
	case !served && s.stop != nil:
		s.stop()
		s.stop = nil
	}
}

// Close ends the server and what the page does.
func (s *Server) Close() {
	s.server.Close() // first: it ends a Serve that waits
	s.page.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follow(context.Background())
}

// reading is what the page shows of pods and containers.
func (s *source) reading(ctx context.Context) (*podusage.Reading, error) {
	sandboxes, err := s.pods.ListSandboxes(ctx, nil)
	if err != nil {
		return nil, err
	}
	containers, err := s.pods.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	var pods runtimeapi.ListPodSandboxResponse
	var all runtimeapi.ListContainersResponse
	if err := proto.Unmarshal(sandboxes.Wire(), &pods); err != nil {
		return nil, fmt.Errorf("cannot read the list of sandboxes: %w", err)
	}
	if err := proto.Unmarshal(containers.Wire(), &all); err != nil {
		return nil, fmt.Errorf("cannot read the list of containers: %w", err)
	}
	stats, err := s.pods.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return nil, err
	}
	return &podusage.Reading{Pods: pods.Items, Containers: all.Containers, PodStats: stats}, nil
}

// logPath is the log file of a container.
func (s *source) logPath(ctx context.Context, id string) (string, error) {
	status, _, err := s.pods.ContainerStatus(ctx, id, false)
	if err != nil {
		return "", err
	}
	if status.GetLogPath() == "" {
		return "", fmt.Errorf("container %s has no log: %w", id, errs.NotFound)
	}
	return status.GetLogPath(), nil
}

// followEvents hands on events until ctx ends.
func (s *source) followEvents(ctx context.Context, got func([]*runtimeapi.ContainerEventResponse)) error {
	events, err := s.pods.Events()
	if err != nil {
		return err
	}
	defer events.Cancel()
	for {
		next, err := events.Next(ctx)
		if err != nil {
			return err
		}
		got(next)
	}
}

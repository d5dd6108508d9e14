// Package nritest has a plugin whose answers a test decides, on NRI's own stub.
package nritest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// Plugin records the events that it gets. The functions, where not nil, decide its answers. Set them
// before Connect.
type Plugin struct {
	// Name is NAME or INDEX-NAME.
	Name string
	// Policy is its failure policy, nil for the default.
	Policy *api.FailurePolicy
	// OnEvent is called with each event's name and object's name before the answer; its error is
	// the answer. Its context ends with the request.
	OnEvent func(ctx context.Context, event, object string) error
	// OnCreate and OnUpdate adjust and update containers. OnStop and OnSync update others.
	OnCreate func(pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error)
	OnUpdate func(c *api.Container, limits *api.LinuxResources) []*api.ContainerUpdate
	OnStop   func(c *api.Container) []*api.ContainerUpdate
	OnSync   func(pods []*api.PodSandbox, containers []*api.Container) []*api.ContainerUpdate

	stub stub.Stub
	conn *connection

	mu     sync.Mutex
	events []string
	synced chan struct{}
	once   sync.Once
}

// Connect connects the plugin to a socket and waits until it is synchronized. It is disconnected at
// the end of the test.
func (p *Plugin) Connect(t testing.TB, socket string) {
	t.Helper()
	if err := p.TryConnect(t, socket); err != nil {
		t.Fatalf("plugin %s: %v", p.Name, err)
	}
	p.AwaitSync(t)
}

// AwaitSync waits until the plugin is synchronized.
func (p *Plugin) AwaitSync(t testing.TB) {
	t.Helper()
	select {
	case <-p.synced:
	case <-t.Context().Done():
		t.Fatalf("plugin %s was not synchronized", p.Name)
	}
}

// TryConnect is Connect for a plugin that may be refused. It does not wait for the synchronization.
func (p *Plugin) TryConnect(t testing.TB, socket string) error {
	p.synced = make(chan struct{})
	index, name, found := strings.Cut(p.Name, "-")
	if !found {
		index, name = "10", p.Name
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
	if err != nil {
		return err
	}
	p.conn = &connection{Conn: conn, stopped: make(chan struct{}), closed: make(chan struct{})}
	options := []stub.Option{
		stub.WithPluginName(name), stub.WithPluginIdx(index), stub.WithConnection(p.conn), stub.WithLogger(quiet{}),
		stub.WithOnClose(func() {}), // else the stub ends the process
	}
	if p.Policy != nil {
		options = append(options, stub.WithFailurePolicy(p.Policy))
	}
	if p.stub, err = stub.New(p, options...); err != nil {
		return err
	}
	t.Cleanup(func() { p.conn.Close() })
	return p.stub.Start(context.WithoutCancel(t.Context()))
}

// Disconnect breaks the connection, as the death of the plugin does.
func (p *Plugin) Disconnect() { p.conn.Close() }

// Babble writes bytes to the connection that are no message of NRI.
func (p *Plugin) Babble() { _, _ = p.conn.Write([]byte("GET / HTTP/1.1\r\nHost: berth\r\n\r\n")) }

// StopReading lets the plugin read nothing any more, as a SIGSTOP does. The connection stays open.
func (p *Plugin) StopReading() { close(p.conn.stopped) }

// connection is a connection that can stop to be read.
type connection struct {
	net.Conn
	stopped, closed chan struct{}
	once            sync.Once
}

func (c *connection) Read(b []byte) (int, error) {
	select {
	case <-c.stopped:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(b)
	}
}

func (c *connection) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Update asks for updates of containers.
func (p *Plugin) Update(updates ...*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return p.stub.UpdateContainers(updates)
}

// Events returns what the plugin got since it was made, one "Event name" each.
func (p *Plugin) Events() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

// Saw reports whether the plugin got an event.
func (p *Plugin) Saw(event string) bool { return slices.Contains(p.Events(), event) }

func (p *Plugin) got(ctx context.Context, event, object string) error {
	p.mu.Lock()
	p.events = append(p.events, event+" "+object)
	p.mu.Unlock()
	if p.OnEvent == nil {
		return nil
	}
	return p.OnEvent(ctx, event, object)
}

// Synchronize implements NRI's interface, as do the methods below.
func (p *Plugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	names := make([]string, 0, len(pods)+len(containers))
	for _, pod := range pods {
		names = append(names, pod.GetName())
	}
	for _, c := range containers {
		names = append(names, fmt.Sprintf("%s:%s", c.GetName(), c.GetState()))
	}
	slices.Sort(names)
	if err := p.got(ctx, "Synchronize", strings.Join(names, ",")); err != nil {
		return nil, err
	}
	defer p.once.Do(func() { close(p.synced) })
	if p.OnSync == nil {
		return nil, nil
	}
	return p.OnSync(pods, containers), nil
}

func (p *Plugin) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.got(ctx, "RunPodSandbox", pod.GetName())
}

func (p *Plugin) UpdatePodSandbox(ctx context.Context, pod *api.PodSandbox, _, _ *api.LinuxResources) error {
	return p.got(ctx, "UpdatePodSandbox", pod.GetName())
}

func (p *Plugin) PostUpdatePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.got(ctx, "PostUpdatePodSandbox", pod.GetName())
}

func (p *Plugin) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.got(ctx, "StopPodSandbox", pod.GetName())
}

func (p *Plugin) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.got(ctx, "RemovePodSandbox", pod.GetName())
}

func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if err := p.got(ctx, "CreateContainer", c.GetName()); err != nil {
		return nil, nil, err
	}
	if p.OnCreate == nil {
		return nil, nil, nil
	}
	return p.OnCreate(pod, c)
}

func (p *Plugin) PostCreateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.got(ctx, "PostCreateContainer", c.GetName())
}

func (p *Plugin) StartContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.got(ctx, "StartContainer", c.GetName())
}

func (p *Plugin) PostStartContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.got(ctx, "PostStartContainer", c.GetName())
}

func (p *Plugin) UpdateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container, limits *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	if err := p.got(ctx, "UpdateContainer", c.GetName()); err != nil || p.OnUpdate == nil {
		return nil, err
	}
	return p.OnUpdate(c, limits), nil
}

func (p *Plugin) PostUpdateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.got(ctx, "PostUpdateContainer", c.GetName())
}

func (p *Plugin) StopContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	if err := p.got(ctx, "StopContainer", c.GetName()); err != nil || p.OnStop == nil {
		return nil, err
	}
	return p.OnStop(c), nil
}

func (p *Plugin) RemoveContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.got(ctx, "RemoveContainer", c.GetName())
}

// quiet logs nothing.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

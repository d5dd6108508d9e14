package berth

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/cri/streaming"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// machine is a host with a berth in memory. Its rules and its CRI server are the real ones. Its
// engine and network are fakes.
type machine struct {
	t      *testing.T
	world  *podtest.World
	engine *bootEngine
	net    *subnet
	config func() any
	// stop ends the daemon.
	stop func()
	// own is the provider under test.
	own *Provider
}

// bootEngine runs containers in which systemd appears to boot.
type bootEngine struct {
	*enginetest.Fake
	mu       sync.Mutex
	specs    map[string]*engine.ContainerSpec
	pods     []*engine.SandboxSpec
	commands [][]string
	stdin    map[string][]byte // by program
	// says is the output of a container at its start.
	says func(spec *engine.ContainerSpec) string
	// refuse makes the creation of containers fail.
	refuse func(spec *engine.ContainerSpec) error
}

func (b *bootEngine) CreateSandbox(ctx context.Context, spec *engine.SandboxSpec) (*engine.Sandbox, error) {
	b.mu.Lock()
	b.pods = append(b.pods, spec)
	b.mu.Unlock()
	return b.Fake.CreateSandbox(ctx, spec)
}

func (b *bootEngine) Create(ctx context.Context, spec *engine.ContainerSpec) (*engine.Container, error) {
	b.mu.Lock()
	b.specs[spec.ID] = spec
	refuse := b.refuse
	b.mu.Unlock()
	if refuse != nil {
		if err := refuse(spec); err != nil {
			return nil, err
		}
	}
	return b.Fake.Create(ctx, spec)
}

func (b *bootEngine) Start(ctx context.Context, id string) (int, error) {
	pid, err := b.Fake.Start(ctx, id)
	b.mu.Lock()
	defer b.mu.Unlock()
	spec := b.specs[id]
	log, openErr := os.OpenFile(spec.LogPath, os.O_APPEND|os.O_WRONLY, 0)
	if openErr != nil {
		return pid, openErr
	}
	defer log.Close()
	_, writeErr := fmt.Fprintf(log, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), b.says(spec))
	if writeErr != nil {
		return pid, writeErr
	}
	return pid, err
}

// systemdHalts is SIGRTMIN+3.
const systemdHalts = syscall.Signal(37)

func (b *bootEngine) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	if sig == systemdHalts {
		sig = syscall.SIGTERM // this ends the fake's containers
	}
	return b.Fake.Signal(ctx, id, sig, all)
}

func (b *bootEngine) Exec(ctx context.Context, spec *engine.ExecSpec) (int32, error) {
	b.mu.Lock()
	b.commands = append(b.commands, spec.Command)
	b.mu.Unlock()
	command := spec.Command
	if command[0] == "env" {
		command = slices.DeleteFunc(slices.Clone(command[1:]), func(word string) bool { return strings.Contains(word, "=") })
	}
	switch command[0] {
	case "tar":
		text, err := io.ReadAll(spec.Stdin)
		b.mu.Lock()
		b.stdin["tar"] = text
		b.mu.Unlock()
		return 0, err
	case "babble":
		_, err := io.WriteString(spec.Stdout, "secret\n")
		return 3, err
	case "complain":
		_, err := io.WriteString(spec.Stderr, "first\nlast words\n")
		return 3, err
	}
	run := *spec
	run.Command = command
	return b.Fake.Exec(ctx, &run)
}

// subnet assigns the requested addresses.
type subnet struct {
	*podtest.Network
	mode string
}

func (s *subnet) Attach(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	result, err := s.Network.Attach(ctx, att)
	if err == nil && len(att.Addresses) > 0 {
		result.IPs = att.Addresses
	}
	return result, err
}

func (s *subnet) Info() map[string]string {
	return map[string]string{"mode": s.mode, "subnets": "10.99.0.0/24,fd00:99::/64"}
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{
		t: t,
		engine: &bootEngine{
			Fake: enginetest.NewFake(), specs: map[string]*engine.ContainerSpec{}, stdin: map[string][]byte{},
			says: func(*engine.ContainerSpec) string {
				return "[  OK  ] Reached target \x1b[0;1;39mmulti-user.target\x1b[0m - Multi-User System.\r"
			},
		},
		net: &subnet{&podtest.Network{}, "builtin"},
	}
	m.world = podtest.NewWorld(t, &podtest.Parts{
		Engine: m.engine, Network: m.net, Images: podtest.NewImages(), ImageName: podtest.ImageName,
		Programs: enginetest.FakePrograms(), Left: m.net.Left,
	})
	m.config = func() any { return struct{ Root string }{m.world.RootDir} }
	m.serve()
	return m
}

// serve starts a daemon, and opens the provider.
func (m *machine) serve() {
	m.t.Helper()
	service := m.world.Daemon(nil)
	log := slog.New(slog.DiscardHandler)
	streams, err := streaming.Listen(m.t.Context(), streaming.Options{Runtime: service, Log: log})
	if err != nil {
		m.t.Fatal(err)
	}
	api, err := cri.New(cri.Options{
		Lifecycle: service, Sessions: service, View: service, Events: service, Node: service,
		Images: m.world.Images, Streams: streams, Version: "1.2.3", Config: m.config,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	server := cri.NewGRPCServer(log, nil, nil)
	api.Register(server)
	images := struct {
		image.Store
		image.Catalog // the test does not use it
	}{Store: m.world.Images}
	(&berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}).Register(server)
	dir, err := os.MkdirTemp("", "berth-own-") // the path of a socket is short
	if err != nil {
		m.t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		m.t.Fatal(err)
	}
	served := make(chan error, 2)
	go func() { served <- server.Serve(listener) }()
	go func() { served <- streams.Serve() }()
	m.stop = sync.OnceFunc(func() { m.end(service, server.Stop, streams, served, dir) })
	m.t.Cleanup(m.stop)
	host := fstest.MapFS{"etc/resolv.conf": {Data: []byte("nameserver 127.0.0.53\nsearch corp.example\n")}}
	m.own, err = Open(m.t.Context(), Options{Env: map[string]string{"BERTH_ENDPOINT": "unix://" + filepath.Join(dir, "s")}, Host: host})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { m.own.conn.Close() })
}

func (m *machine) end(service *pod.Service, stop func(), streams *streaming.Server, served <-chan error, dir string) {
	stop()
	if err := streams.Close(); err != nil {
		m.t.Error(err)
	}
	for range 2 {
		if err := <-served; err != nil {
			m.t.Error(err)
		}
	}
	m.world.CloseDaemon(service)
	os.RemoveAll(dir)
}

// network returns the network of the machine.
func (m *machine) network() provider.Network {
	m.t.Helper()
	n, err := m.own.EnsureNetwork(m.t.Context(), "kind")
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// spec is a node of a cluster.
func spec(name string) provider.Spec {
	cluster, _, _ := strings.Cut(name, "-")
	return provider.Spec{Container: plan.Container{
		Name: name, Role: string(config.Worker), Image: podtest.ImageName, Privileged: true,
		Labels: map[string]string{plan.LabelCluster: cluster, plan.LabelRole: "worker"},
		Env:    map[string]string{"container": "oci", "HTTP_PROXY": "http://me:secret@proxy"},
		Tmpfs:  []string{"/tmp", "/run"}, Volumes: []plan.Volume{{Name: name + "-var", Target: "/var"}},
		Mounts: []plan.Mount{{Source: "/lib/modules", Target: "/lib/modules", ReadOnly: true, Propagation: config.PropagateNone}},
		Ports:  []plan.Port{{Listen: "127.0.0.1", Host: 36443, Container: 6443, Protocol: config.TCP}},
	}}
}

func (m *machine) create(specs ...provider.Spec) error {
	m.t.Helper()
	return m.own.Create(m.t.Context(), provider.Request{Network: m.network(), Specs: specs, Wait: 20 * time.Second})
}

// nodes are those of a cluster, as "name state address".
func (m *machine) nodes(cluster string) []string {
	m.t.Helper()
	all, err := m.own.List(m.t.Context(), cluster)
	if err != nil {
		m.t.Fatal(err)
	}
	var texts []string
	for _, n := range all {
		texts = append(texts, fmt.Sprintf("%s %s %s", n.Name, n.State, n.IPv4))
	}
	return texts
}

func (m *machine) wantNodes(cluster string, want ...string) {
	m.t.Helper()
	if got := m.nodes(cluster); !slices.Equal(got, want) {
		m.t.Errorf("nodes %q, want %q", got, want)
	}
}

// wantNothing checks that no node has left anything.
func (m *machine) wantNothing() {
	m.t.Helper()
	entries, err := os.ReadDir(m.own.dir)
	if err != nil && !os.IsNotExist(err) || len(entries) > 0 {
		m.t.Errorf("left in %s: %v, %v", m.own.dir, entries, err)
	}
	if left := append(m.engine.Left(), m.net.Left()...); len(left) > 0 {
		m.t.Errorf("left: %q", left)
	}
}

// hosts returns a node's /etc/hosts.
func (m *machine) hosts(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.own.nodeDir(name), hostsName))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

var errRefused = fmt.Errorf("no such mount: %w", errs.Invalid)

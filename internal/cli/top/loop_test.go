package top

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/test/harness/terminal"
)

// other is a runtime that is not berth: it has no jobs and no figures of pods.
type other struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	world *world
}

func (o *other) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: o.world.pods}, nil
}

func (o *other) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: o.world.all}, nil
}

func (o *other) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	var all []*runtimeapi.ContainerStats
	for _, c := range o.world.all {
		all = append(all, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: c.Id}, Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: u64(77_000_000)},
		})
	}
	return &runtimeapi.ListContainerStatsResponse{Stats: all}, nil
}

// connected is a connection to a runtime of the test.
func connected(t *testing.T, w *world) *criclient.Conn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, &other{world: w})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := criclient.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-served
	})
	return conn
}

func newLoop(t *testing.T, x *terminal.Terminal) *loop {
	return &loop{
		conn: connected(t, usual()), model: &model{node: "n", interval: time.Second, endpoint: "unix:///s"}, shell: []string{"sh"},
		screen: &screen.Screen{In: x.Program, Out: x.Program},
	}
}

// wantFormer fails the test unless the terminal is what it was.
func wantFormer(t *testing.T, x *terminal.Terminal, before any) {
	t.Helper()
	x.Await("the first screen", func(s terminal.Screen) bool { return !s.Second && s.Cursor && s.Wrap })
	if diff := cmp.Diff(before, any(x.Modes())); diff != "" {
		t.Errorf("the terminal's modes have changed: %s", diff)
	}
}

// TestOtherRuntimes: without jobs and figures of pods there is still a table, and the figures of containers.
func TestOtherRuntimes(t *testing.T) {
	x := terminal.Open(t, 80, 24)
	before := x.Modes()
	ended := make(chan error, 1)
	l := newLoop(t, x)
	go func() { ended <- l.run(t.Context()) }()
	x.Await("the figures", func(s terminal.Screen) bool { return s.Second && !s.Cursor && s.Has("default/web") && s.Has("77MB") })
	x.Type("j")
	x.Await("the jobs", func(s terminal.Screen) bool { return s.Has("this runtime is not berth") })
	x.Type("\x1b") // alone, it is a key after a moment
	x.Await("the table", func(s terminal.Screen) bool { return s.Has("coredns") })
	x.Type("/core\r")
	x.Await("the filter", func(s terminal.Screen) bool { return !s.Has("default/web") && s.Has("coredns") })
	x.Type("q")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	wantFormer(t, x, before)
}

// TestPanicLeavesTheTerminal: a fault of the program ends it with the terminal as it was.
func TestPanicLeavesTheTerminal(t *testing.T) {
	x := terminal.Open(t, 80, 24)
	before := x.Modes()
	l := newLoop(t, x)
	l.model.view = logView // without a log
	panicked := func() (p any) {
		defer func() { p = recover() }()
		return l.run(t.Context())
	}()
	if err, ok := panicked.(error); !ok || err == nil {
		t.Errorf("the fault was %v", panicked)
	}
	wantFormer(t, x, before)
}

// TestEndOfTheContext: the end of the command leaves the terminal, too.
func TestEndOfTheContext(t *testing.T) {
	x := terminal.Open(t, 80, 24)
	before := x.Modes()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	l := newLoop(t, x)
	go func() { ended <- l.run(ctx) }()
	x.Await("the figures", func(s terminal.Screen) bool { return s.Has("default/web") })
	cancel()
	if err := <-ended; err == nil {
		t.Error("the end of the context is no error")
	}
	wantFormer(t, x, before)
}

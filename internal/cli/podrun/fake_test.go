package podrun

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// program is what a fake container runs. It returns the exit code, and must return when stop is
// closed.
type program func(c *fakeContainer) int32

// fakeRuntime is a CRI runtime in memory. Containers run the program with their name, and write
// real log files.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	programs map[string]program
	exec     func(name string, cmd []string) (int32, error)
	image    *runtimeapi.Image
	// lists answers ListPodSandbox in place of the fake, nil for none.
	lists func() error
	// runs answers RunPodSandbox in place of the fake, nil for none.
	runs func() error
	// starts and removes answer StartContainer and RemoveContainer of an id in place of the fake, nil for none.
	starts, removes func(id string) error
	// shut ends the server; it serves again when the function that it returns is called.
	shut func() (again func())

	mu         sync.Mutex
	calls      []string
	sandboxes  map[string]*fakeSandbox
	containers map[string]*fakeContainer
}

type fakeSandbox struct {
	config *runtimeapi.PodSandboxConfig
	ready  bool
}

// idOf returns the id of a pod's sandbox. The pod web, which most tests run, has the id "sandbox".
func idOf(meta *runtimeapi.PodSandboxMetadata) string {
	if meta.Name == "web" {
		return "sandbox"
	}
	return "sandbox " + meta.Name
}

type fakeContainer struct {
	config  *runtimeapi.ContainerConfig
	logPath string
	stop    chan struct{}
	stopped sync.Once
	status  *runtimeapi.ContainerStatus
	done    chan struct{}
}

// log writes a line as the runtime would.
func (c *fakeContainer) log(text string) {
	f, err := os.OpenFile(c.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), text)
}

func (f *fakeRuntime) note(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeRuntime) noted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.calls...)
}

func (f *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	if f.lists != nil {
		if err := f.lists(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxResponse{}
	for id, s := range f.sandboxes {
		if s.ready {
			resp.Items = append(resp.Items, &runtimeapi.PodSandbox{Id: id, Metadata: s.config.Metadata})
		}
	}
	return resp, nil
}

func (f *fakeRuntime) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if f.runs != nil {
		if err := f.runs(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := idOf(req.Config.Metadata)
	f.note("run %s", id)
	f.sandboxes[id] = &fakeSandbox{config: req.Config, ready: true}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (f *fakeRuntime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := runtimeapi.PodSandboxState_SANDBOX_READY
	if !f.sandboxes[req.PodSandboxId].ready {
		state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		State: state, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "127.0.0.1"},
	}}, nil
}

func (f *fakeRuntime) StopPodSandbox(_ context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("stop %s", req.PodSandboxId)
	f.sandboxes[req.PodSandboxId].ready = false
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (f *fakeRuntime) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("remove %s", req.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (f *fakeRuntime) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	meta := req.Config.Metadata
	id := fmt.Sprintf("%s-%d", meta.Name, meta.Attempt)
	sandbox := f.sandboxes[req.PodSandboxId]
	if name := sandbox.config.Metadata.Name; name != "web" {
		id = name + "/" + id
	}
	if f.programs[meta.Name] == nil {
		return nil, fmt.Errorf("no program for %s: %w", meta.Name, errs.Invalid)
	}
	f.note("create %s", id)
	f.containers[id] = &fakeContainer{
		config: req.Config, logPath: filepath.Join(sandbox.config.LogDirectory, req.Config.LogPath),
		stop: make(chan struct{}), done: make(chan struct{}),
		status: &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_CREATED},
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

func (f *fakeRuntime) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("start %s", req.ContainerId)
	if f.starts != nil {
		if err := f.starts(req.ContainerId); err != nil {
			return nil, err
		}
	}
	c := f.containers[req.ContainerId]
	c.status = &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_RUNNING, StartedAt: 1}
	run := f.programs[c.config.Metadata.Name]
	go func() {
		code := run(c)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.note("end %s", req.ContainerId)
		c.status = &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: code}
		close(c.done)
	}()
	return &runtimeapi.StartContainerResponse{}, nil
}

func (f *fakeRuntime) container(id string) (*fakeContainer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil, fmt.Errorf("container %s: %w", id, errs.NotFound)
	}
	return c, nil
}

func (f *fakeRuntime) StopContainer(_ context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := f.container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.note("stop %s in %d", req.ContainerId, req.Timeout)
	neverRan := c.status.State == runtimeapi.ContainerState_CONTAINER_CREATED
	f.mu.Unlock()
	if neverRan {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	c.stopped.Do(func() { close(c.stop) })
	if req.Timeout == 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		c.status = &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: 137}
		return &runtimeapi.StopContainerResponse{}, nil
	}
	<-c.done
	return &runtimeapi.StopContainerResponse{}, nil
}

func (f *fakeRuntime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := f.container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ContainerStatusResponse{Status: c.status}, nil
}

func (f *fakeRuntime) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removes != nil {
		if err := f.removes(req.ContainerId); err != nil {
			return nil, err
		}
	}
	delete(f.containers, req.ContainerId)
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (f *fakeRuntime) ExecSync(_ context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	code, err := f.exec(req.ContainerId, req.Cmd)
	return &runtimeapi.ExecSyncResponse{ExitCode: code}, err
}

func (f *fakeRuntime) ImageStatus(context.Context, *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{Image: f.image}, nil
}

// serve serves the fake on a socket for the test's time and dials it.
func serve(t *testing.T, f *fakeRuntime) *criclient.Conn {
	t.Helper()
	f.containers, f.sandboxes = map[string]*fakeContainer{}, map[string]*fakeSandbox{}
	if f.image == nil {
		f.image = &runtimeapi.Image{Id: "sha256:1"}
	}
	path := filepath.Join(t.TempDir(), "s")
	f.shut = f.listen(t, path)
	conn, err := criclient.Dial(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (f *fakeRuntime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{}, nil
}

// listen serves the fake on a socket. The returned function ends that; its own result serves again.
func (f *fakeRuntime) listen(t *testing.T, path string) (shut func() (again func())) {
	t.Helper()
	server := cri.NewGRPCServer(slog.New(slog.DiscardHandler), nil, nil)
	runtimeapi.RegisterRuntimeServiceServer(server, f)
	runtimeapi.RegisterImageServiceServer(server, f)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	stop := sync.OnceFunc(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return func() func() {
		stop()
		return func() { f.shut = f.listen(t, path) }
	}
}

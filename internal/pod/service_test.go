package pod_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
	"github.com/berthrun/berth/internal/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestBadRequests(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	create := func(change func(*runtimeapi.ContainerConfig)) error {
		config := b.ContainerConfig("bad", nil)
		change(config)
		_, err := b.s.CreateContainer(t.Context(), sandbox, config)
		return err
	}
	assertKind(t, create(func(c *runtimeapi.ContainerConfig) { c.Image.Image = "registry.test/none:1" }), errs.NotFound, "registry.test/none:1", "pull")
	assertKind(t, create(func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "0123"}
	}), errs.NotFound, "target_id")
	_, err := b.s.CreateContainer(t.Context(), "0123", b.ContainerConfig("bad", nil))
	assertKind(t, err, errs.NotFound, "PodSandbox with ID starting with 0123 not found")
	_, err = b.s.CreateContainer(t.Context(), "", b.ContainerConfig("bad", nil))
	assertKind(t, err, errs.Invalid)
	if list, err := podtest.Containers(t.Context(), b.s, nil); err != nil || len(list) != 0 {
		t.Errorf("bad requests left %v, %v", list, err)
	}
	b.clear()
}

func TestListsAndFilters(t *testing.T) {
	b := newBed(t, nil)
	web, db := b.mustRun(b.SandboxConfig("web")), b.mustRun(b.SandboxConfig("db"))
	one, two := b.mustStart(web, "one", b.Programs.Sleep), b.mustCreate(db, "two", b.Programs.Sleep)
	if err := b.s.StopSandbox(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	sandboxes := func(f *runtimeapi.PodSandboxFilter) (ids []string) {
		list, err := podtest.Sandboxes(t.Context(), b.s, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range list {
			ids = append(ids, sb.GetId())
		}
		return ids
	}
	containers := func(f *runtimeapi.ContainerFilter) (ids []string) {
		list, err := podtest.Containers(t.Context(), b.s, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			ids = append(ids, c.GetId())
		}
		return ids
	}
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"all, the newest first", sandboxes(nil), []string{db, web}},
		{"by prefix", sandboxes(&runtimeapi.PodSandboxFilter{Id: web[:12]}), []string{web}},
		{"by state", sandboxes(&runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: ready}}), []string{web}},
		{"by label", sandboxes(&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "db"}}), []string{db}},
		{"by no such label", sandboxes(&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"tier": ""}}), nil},
		{"containers, the newest first", containers(nil), []string{two, one}},
		{"by sandbox", containers(&runtimeapi.ContainerFilter{PodSandboxId: web}), []string{one}},
		{"by state", containers(&runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: exited}}), []string{two}},
		{"by label", containers(&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"container": "one"}}), []string{one}},
	} {
		if fmt.Sprint(c.got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
	b.clear()
}

func TestContainerStatus(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	config := b.ContainerConfig("main", b.Programs.Sleep)
	config.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	config.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 2000}
	config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/srv"}}
	id, err := b.s.CreateContainer(t.Context(), sandbox, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.s.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	status, info, err := b.s.ContainerStatus(t.Context(), id[:10], true)
	if err != nil {
		t.Fatal(err)
	}
	if status.GetImageId() != "sha256:fa4e" || status.GetImageRef() != "registry.test/fake@sha256:d19e57" || status.GetImage().GetImage() != b.ImageName ||
		status.GetLogPath() != filepath.Join(b.LogDir, "main.log") || len(status.GetMounts()) != 1 || status.GetStartedAt() == 0 ||
		status.GetUser().GetLinux().GetUid() != 1000 || status.GetUser().GetLinux().GetGid() != 2000 {
		t.Errorf("status %v", status)
	}
	if strings.Contains(info["info"], "hunter2") || !strings.Contains(info["info"], `"pid":`) {
		t.Errorf("info %s", info["info"])
	}
	if err := b.s.UpdateContainer(t.Context(), id, &runtimeapi.LinuxContainerResources{CpuShares: 512}); err != nil {
		t.Error(err)
	}
	if got := b.status(id).GetResources().GetLinux().GetCpuShares(); got != 512 {
		t.Errorf("cpu shares %d after the update", got)
	}
	if used := b.s.ImageInUse("sha256:fa4e"); len(used) != 1 || used[0] != id {
		t.Errorf("ImageInUse = %v", used)
	}
	b.clear()
}

func TestExecAndStats(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustCreate(sandbox, "main", b.Programs.Sleep)
	_, _, err := b.s.CheckExec(t.Context(), id)
	assertKind(t, err, errs.State, "not running")
	if err := b.s.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	full, config, err := b.s.CheckExec(t.Context(), id[:10])
	if err != nil || full != id || config.GetMetadata().GetName() != "main" {
		t.Errorf("CheckExec = %s, %v, %v", full, config, err)
	}
	var out bytes.Buffer
	code, err := b.s.Exec(t.Context(), &engine.ExecSpec{ContainerID: id[:10], Command: b.Programs.Echo("hello"), Stdout: &out})
	if code != 0 || err != nil || out.String() != "hello\n" {
		t.Errorf("Exec = %d, %v, %q", code, err, out.String())
	}
	if err := b.s.ReopenContainerLog(t.Context(), id); err != nil {
		t.Error(err)
	}
	stats, err := b.s.ContainerStats(t.Context(), id)
	if err != nil || stats.GetAttributes().GetMetadata().GetName() != "main" {
		t.Errorf("ContainerStats = %v, %v", stats, err)
	}
	pods, err := b.s.ListPodSandboxStats(t.Context(), nil)
	if err != nil || len(pods) != 1 || len(pods[0].GetLinux().GetContainers()) != 1 || pods[0].GetAttributes().GetId() != sandbox {
		t.Errorf("ListPodSandboxStats = %v, %v", pods, err)
	}
	b.clear()
}

// The log of a container whose creation failed is removed. The log of an exited container stays.
func TestLogsOfRemovedContainers(t *testing.T) {
	var fail atomic.Bool
	b := newBed(t, func(_ int, name string) error {
		if fail.Load() && name == "after engine.Create" {
			return podtest.ErrInjected
		}
		return nil
	})
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "done", b.Programs.Echo("words"))
	podtest.Eventually(t, "it exits", func() bool { return b.status(id).GetState() == exited })
	b.assertExit(id, 0, "Completed")
	if err := b.s.RemoveContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	fail.Store(true)
	half := b.ContainerConfig("half", nil)
	if _, err := b.s.CreateContainer(t.Context(), sandbox, half); !errors.Is(err, podtest.ErrInjected) || strings.Count(err.Error(), "cannot create container ") != 1 {
		t.Errorf("CreateContainer: %v", err)
	}
	time.Sleep(50 * time.Millisecond) // so that the files' times differ
	half.LogPath = "done.log"         // another container's
	if _, err := b.s.CreateContainer(t.Context(), sandbox, half); !errors.Is(err, podtest.ErrInjected) {
		t.Errorf("CreateContainer: %v", err)
	}
	logs, err := os.ReadDir(b.LogDir)
	if err != nil || len(logs) != 1 || logs[0].Name() != "done.log" {
		t.Errorf("logs: %v, %v", logs, err)
	}
	b.clear()
}

func TestPortForward(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			l, err := net.Listen("tcp", address)
			if address == "[::1]:0" {
				require.IPv6(t, err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			// This server answers once it has the whole request, so the client must half-close the
			// connection to get an answer.
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				request, _ := io.ReadAll(conn)
				fmt.Fprintf(conn, "got %d bytes", len(request))
			}()
			b := newBed(t, nil)
			config := b.SandboxConfig("web")
			config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
			sandbox := b.mustRun(config)
			full, err := b.s.CheckPortForward(t.Context(), sandbox[:10])
			if err != nil || full != sandbox {
				t.Errorf("CheckPortForward = %s, %v", full, err)
			}
			client := &stream{request: strings.NewReader("0123456789")}
			tcp, ok := l.Addr().(*net.TCPAddr)
			if !ok {
				t.Fatal("no TCP address")
			}
			if err := b.s.PortForward(t.Context(), sandbox, int32(tcp.Port), client); err != nil {
				t.Error(err)
			}
			if client.answer.String() != "got 10 bytes" || !client.closed {
				t.Errorf("answer %q, closed %v", client.answer.String(), client.closed)
			}
			l.Close()
			refused := &stream{request: strings.NewReader("")}
			assertKind(t, b.s.PortForward(t.Context(), sandbox, int32(tcp.Port), refused), errs.Unavailable, "refused")
			if !refused.closed {
				t.Error("the stream is left open")
			}
			b.clear()
		})
	}
}

// If a server accepts no connections, the call fails in bounded time. The error names the pod, the
// port and both families.
func TestPortForwardToAServerThatHangs(t *testing.T) {
	// Two connections exceed its queue. The test accepts none.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*unix.SockaddrInet4).Port
	queued, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer queued.Close()

	w := podtest.NewWorld(t, podtest.Fake())
	w.Limits = pod.Limits{Batch: time.Millisecond, Dial: 100 * time.Millisecond}
	s := w.Daemon(nil)
	config := w.SandboxConfig("web")
	config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	id, err := s.RunSandbox(t.Context(), config, "")
	if err != nil {
		t.Fatal(err)
	}
	client := &stream{request: strings.NewReader("")}
	ended := make(chan error, 1)
	go func() { ended <- s.PortForward(t.Context(), id, int32(port), client) }()
	select {
	case err = <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs")
	}
	assertKind(t, err, errs.Unavailable, "default/web", strconv.Itoa(port), "IPv4", "timeout", "IPv6")
	if !client.closed {
		t.Error("the stream is left open")
	}
}

func TestPortForwardOfUDPIsRefusedByName(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := newBed(t, nil)
	config := b.SandboxConfig("dns")
	config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	sandbox := b.mustRun(config)
	udp, ok := l.LocalAddr().(*net.UDPAddr)
	if !ok {
		t.Fatal("no UDP address")
	}
	client := &stream{request: strings.NewReader("")}
	assertKind(t, b.s.PortForward(t.Context(), sandbox, int32(udp.Port), client), errs.Unsupported, "only TCP is forwarded")
	b.clear()
}

// stream is a client's side of a forwarded port.
type stream struct {
	request io.Reader
	answer  bytes.Buffer
	closed  bool
}

func (s *stream) Read(p []byte) (int, error)  { return s.request.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.answer.Write(p) }
func (s *stream) Close() error {
	s.closed = true
	return nil
}

// A namespace that no longer exists must not make the call hang.
func TestPortForwardWithoutNamespace(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web")) // its namespace is a fake
	done := make(chan error, 1)
	go func() { done <- b.s.PortForward(t.Context(), sandbox, 80, &stream{request: strings.NewReader("")}) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("forwarded into a namespace that does not exist")
		}
	case <-time.After(20 * time.Second):
		t.Error("it hangs")
	}
	b.clear()
}

// TestRecordIDs: everything that a pod has a record of is listed until the record is gone.
func TestRecordIDs(t *testing.T) {
	b := newBed(t, nil)
	if ids, err := b.s.RecordIDs(); len(ids) > 0 || err != nil {
		t.Errorf("without a pod: %q", ids)
	}
	sandbox := b.mustRun(b.SandboxConfig("web"))
	container := b.mustCreate(sandbox, "c", nil)
	want := []string{sandbox, container}
	slices.Sort(want)
	if ids, err := b.s.RecordIDs(); !slices.Equal(ids, want) || err != nil {
		t.Errorf("%q, want %q", ids, want)
	}
	if err := b.s.RemoveSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	if ids, err := b.s.RecordIDs(); len(ids) > 0 || err != nil {
		t.Errorf("after the removal: %q", ids)
	}
}

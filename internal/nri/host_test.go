package nri

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/berthrun/berth/internal/nri/nritest"
	"github.com/berthrun/berth/internal/require"
)

// TestMain is the plugin, where a Host has started this program as one.
func TestMain(m *testing.M) {
	if os.Getenv(api.PluginNameEnvVar) == "" {
		LogTo(slog.New(slog.DiscardHandler))
		os.Exit(m.Run())
	}
	p, err := stub.New(&launched{})
	if err == nil {
		err = p.Run(context.Background())
	}
	if err != nil {
		os.Exit(1)
	}
}

// launched adds its configuration to the environment of containers.
type launched struct{ config string }

func (l *launched) Configure(_ context.Context, config, runtime, _ string) (stub.EventMask, error) {
	l.config = runtime + " " + strings.TrimSpace(config)
	return 0, nil
}

func (l *launched) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	a.AddEnv("CONFIG", l.config)
	a.AddAnnotation("pid", strconv.Itoa(os.Getpid()))
	return a, nil, nil
}

// runtime has one pod and one container.
type runtime struct {
	mu      sync.Mutex
	updated []string
	evicted []string
	// block keeps updates waiting until it is closed, if it is not nil.
	block chan struct{}
	// snapshots counts the calls of Snapshot.
	snapshots int
}

func (r *runtime) Snapshot(context.Context) ([]*api.PodSandbox, []*api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshots++
	return []*api.PodSandbox{{Id: "p", Name: "pod"}}, []*api.Container{{Id: "c", PodSandboxId: "p", Name: "container"}}
}

func (r *runtime) Update(ctx context.Context, update *api.ContainerUpdate) error {
	if r.block != nil {
		select {
		case <-r.block:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updated = append(r.updated, update.GetContainerId())
	return nil
}

func (r *runtime) Evict(_ context.Context, id, reason string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evicted = append(r.evicted, id+" "+reason)
	return nil
}

func newHost(t *testing.T, dir string, registration, request time.Duration) *Host {
	t.Helper()
	h, err := New(Config{
		Socket: filepath.Join(dir, "nri.sock"), PluginDir: filepath.Join(dir, "plugins"), ConfigDir: filepath.Join(dir, "conf"),
		Registration: registration, Request: request, Version: "v1", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// TestLaunchedPlugins: the plugins of the directory are started with their configuration, and one
// that does not register hinders nobody.
func TestLaunchedPlugins(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "conf", "10-self.conf"), "hello\n", 0o600)
	write(t, filepath.Join(dir, "plugins", "README"), "not a program", 0o600)
	write(t, filepath.Join(dir, "plugins", "20-ends"), "#!/bin/sh\nexit 1\n", 0o700)
	if err := os.Symlink(self, filepath.Join(dir, "plugins", "10-self")); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, dir, 20*time.Second, 20*time.Second)
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	active, release, err := h.Hold(t.Context())
	if !active || err != nil {
		t.Fatalf("no plugin is connected: %v; %+v", err, h.Info())
	}
	created, err := h.CreateContainer(t.Context(), &api.PodSandbox{Id: "p"}, &api.Container{Id: "c2"})
	release()
	if err != nil || len(created.Adjust.GetEnv()) != 1 || created.Adjust.GetEnv()[0].GetValue() != "berth hello" {
		t.Errorf("the plugin's answer: %v, %v", created, err)
	}
	got := h.Info().Plugins
	if len(got) != 2 || got[0].Name != "10-self" || !got[0].Connected || got[0].LastError != "" {
		t.Fatalf("shown plugins: %+v", got)
	}
	if ends := got[1]; ends.Name != "20-ends" || ends.Connected || ends.LastEvent != "RegisterPlugin" || !strings.Contains(ends.LastError, "connection closed") {
		t.Errorf("a plugin that ends at once is shown as %+v", ends)
	}
}

// TestPluginThatDoesNotRegister: a plugin that Start has started in vain is shown and logged, with the stage and the bound.
func TestPluginThatDoesNotRegister(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plugins", "10-hangs"), "#!/bin/sh\nexec sleep 60\n", 0o700)
	var lines lockedLines
	h := newHost(t, dir, time.Second/4, 20*time.Second)
	h.table.log = slog.New(slog.NewTextHandler(&lines, nil))
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	h.Close()
	got := h.Info().Plugins
	if len(got) != 1 || got[0].Name != "10-hangs" || got[0].Connected || got[0].LastEvent != "RegisterPlugin" ||
		!strings.Contains(got[0].LastError, "it has not registered (nri.plugin_registration_timeout is 250ms): plugin registration timed out") {
		t.Errorf("shown plugins: %+v", got)
	}
	if log := lines.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "plugin=10-hangs") || !strings.Contains(log, "timed out") {
		t.Errorf("logged: %s", log)
	}
}

// TestPluginThatLeaves: a plugin that ends between two events is shown with this cause, not with an older error. The end of
// the Host is no warning.
func TestPluginThatLeaves(t *testing.T) {
	dir := t.TempDir()
	var lines lockedLines
	h := newHost(t, dir, 20*time.Second, 20*time.Second)
	h.table.log = slog.New(slog.NewTextHandler(&lines, nil))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "plugins", "20-self")); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	guest := &nritest.Plugin{Name: "10-guest", OnEvent: func(_ context.Context, event, _ string) error {
		if event == "RunPodSandbox" {
			return errors.New("not here")
		}
		return nil
	}}
	guest.Connect(t, filepath.Join(dir, "nri.sock"))
	_, release, err := h.Hold(t.Context()) // waits for the end of the synchronization
	if err != nil {
		t.Fatal(err)
	}
	release()
	if err := h.RunPodSandbox(t.Context(), &api.PodSandbox{Id: "p2"}); err == nil {
		t.Error("the plugin's refusal is no error")
	}
	guest.Disconnect()
	eventually(t, "the plugin is disconnected", func() bool { return !h.Info().Plugins[0].Connected })
	if left := h.Info().Plugins[0]; left.LastEvent != "" || left.LastError != errLeft.Error() || left.Errors != 1 {
		t.Errorf("a plugin that has left is shown as %+v", left)
	}
	if log := lines.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, errLeft.Error()) {
		t.Errorf("logged: %s", log)
	}
	lines.Reset()
	h.Close()
	eventually(t, "the other plugin is disconnected", func() bool { return !h.Info().Plugins[1].Connected })
	if log := lines.String(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the end of berth logs %s", log)
	}
}

// lockedLines are the lines of a log that several goroutines write.
type lockedLines struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *lockedLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *lockedLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

func (l *lockedLines) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines.Reset()
}

// TestBadPluginName: a program whose name is not INDEX-NAME is named at the start.
func TestBadPluginName(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plugins", "logger"), "#!/bin/sh\n", 0o700)
	h := newHost(t, dir, time.Second, 20*time.Second)
	err := h.Start(&runtime{})
	if err == nil || !strings.Contains(err.Error(), "logger") || !strings.Contains(err.Error(), filepath.Join(dir, "plugins")) {
		t.Errorf("Start: %v, want the program and its directory", err)
	}
	if active, release, err := h.Hold(t.Context()); active || err != nil {
		t.Errorf("after a failed start, events wait or go out: %v, %v", active, err)
	} else {
		release()
	}
}

// TestSocketOfAnother: a socket on which a program answers is left to it; one that nobody serves is
// taken.
func TestSocketOfAnother(t *testing.T) {
	dir := t.TempDir()
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "nri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, dir, time.Second, 20*time.Second)
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(h.Info().Warning, "another program serves") {
		t.Errorf("no warning: %+v", h.Info())
	}
	h.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(dir, "nri.sock"))
	if err != nil {
		t.Fatalf("the other program's socket is gone: %v", err)
	}
	conn.Close()
	other.(*net.UnixListener).SetUnlinkOnClose(false)
	other.Close()
	h = newHost(t, dir, time.Second, 20*time.Second)
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	p := &nritest.Plugin{Name: "logger"}
	p.Connect(t, filepath.Join(dir, "nri.sock"))
	if got := p.Events(); !slices.Equal(got, []string{"Synchronize container:CONTAINER_UNKNOWN,pod"}) {
		t.Errorf("events: %v", got)
	}
}

// TestStartWithoutPluginsReadsNothing: a start of the daemon looks at no container when there is no plugin to
// synchronize. One that connects later gets all.
func TestStartWithoutPluginsReadsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "plugins", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	h, r := newHost(t, dir, 20*time.Second, 20*time.Second), &runtime{}
	if err := h.Start(r); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r.mu.Lock()
	snapshots := r.snapshots
	r.mu.Unlock()
	if snapshots != 0 {
		t.Errorf("without a plugin Start takes %d snapshots", snapshots)
	}
	p := &nritest.Plugin{Name: "logger"}
	p.Connect(t, filepath.Join(dir, "nri.sock"))
	if got := p.Events(); !slices.Equal(got, []string{"Synchronize container:CONTAINER_UNKNOWN,pod"}) {
		t.Errorf("events: %v", got)
	}
}

// TestHoldKeepsPluginsOut: a plugin is not synchronized between an event and the change that it
// reports.
func TestHoldKeepsPluginsOut(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir, 20*time.Second, 20*time.Second)
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	_, release, err := h.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &nritest.Plugin{Name: "logger"}
	if err := p.TryConnect(t, filepath.Join(dir, "nri.sock")); err != nil {
		t.Fatal(err)
	}
	if got := p.Events(); len(got) > 0 || h.table.active() {
		t.Errorf("a plugin is synchronized while a goroutine holds: %v", got)
	}
	release()
	p.AwaitSync(t)
}

// TestBadRegistrations: a plugin with an invalid name or index is refused and not shown as
// connected, and the next one can connect.
func TestBadRegistrations(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir, 20*time.Second, 20*time.Second)
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, name := range []string{"xx-logger", "100-logger"} {
		p := &nritest.Plugin{Name: name}
		if err := p.TryConnect(t, filepath.Join(dir, "nri.sock")); err == nil {
			t.Errorf("plugin %q could connect", name)
		}
	}
	// This is not a frame of NRI.
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(dir, "nri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(strings.Repeat("nonsense", 100))); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	p := &nritest.Plugin{Name: "10-good"}
	p.Connect(t, filepath.Join(dir, "nri.sock"))
	for _, shown := range h.Info().Plugins {
		if shown.Connected && shown.Name != "10-good" {
			t.Errorf("shown as connected: %+v", shown)
		}
	}
}

// TestHangingSynchronization: a plugin that hangs in its synchronization is disconnected, with the
// cause, and the next one can connect.
func TestHangingSynchronization(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir, 20*time.Second, time.Second/2)
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ill := &nritest.Plugin{Name: "10-ill", OnEvent: func(context.Context, string, string) error {
		<-t.Context().Done()
		return nil
	}}
	if err := ill.TryConnect(t, filepath.Join(dir, "nri.sock")); err != nil {
		t.Fatal(err)
	}
	good := &nritest.Plugin{Name: "20-good"}
	good.Connect(t, filepath.Join(dir, "nri.sock"))
	for _, shown := range h.Info().Plugins {
		if shown.Name == "10-ill" && (shown.Connected || shown.LastEvent != "Synchronize" ||
			!strings.HasPrefix(shown.LastError, "the plugin has not answered Synchronize within ")) {
			t.Errorf("berth shows %+v", shown)
		}
	}
}

// TestUpdatesAtSynchronization: what a plugin answers to its synchronization is done, before what it
// asks for later, and no event waits for it.
func TestUpdatesAtSynchronization(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir, 20*time.Second, 20*time.Second)
	r := &runtime{block: make(chan struct{})}
	if err := h.Start(r); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	p := &nritest.Plugin{Name: "balancer", OnSync: updateFirst}
	p.Connect(t, filepath.Join(dir, "nri.sock"))
	_, release, err := h.Hold(t.Context()) // waits for the end of the synchronization
	if err != nil {
		t.Fatal(err)
	}
	release()
	later := make(chan error, 1)
	go func() {
		_, err := p.Update(&api.ContainerUpdate{ContainerId: "later"})
		later <- err
	}()
	close(r.block)
	if err := <-later; err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.updated, []string{"c", "later"}) {
		t.Errorf("updated: %v", r.updated)
	}
}

// TestCloseEndsUpdates: Close ends an update that does not come to its end.
func TestCloseEndsUpdates(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir, 20*time.Second, 20*time.Second)
	r := &runtime{block: make(chan struct{})}
	if err := h.Start(r); err != nil {
		t.Fatal(err)
	}
	p := &nritest.Plugin{Name: "balancer", OnSync: updateFirst}
	p.Connect(t, filepath.Join(dir, "nri.sock"))
	_, release, err := h.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release()
	h.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.updated) > 0 {
		t.Errorf("updated: %v", r.updated)
	}
}

func updateFirst(_ []*api.PodSandbox, containers []*api.Container) []*api.ContainerUpdate {
	return []*api.ContainerUpdate{{ContainerId: containers[0].GetId()}}
}

// TestPluginThatDoesNotRead: a plugin that does not read from its connection, and whose socket is
// full, does not keep an event waiting. It is shown as disconnected, with the cause, also if its
// policy says that it stays connected after a timeout.
func TestPluginThatDoesNotRead(t *testing.T) {
	for name, policy := range map[string]*api.FailurePolicy{"default policy": nil, "keeps connected": {KeepConnected: true}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			h := newHost(t, dir, 20*time.Second, time.Second)
			if err := h.Start(&runtime{}); err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			ill := &nritest.Plugin{Name: "10-ill", Policy: policy}
			ill.Connect(t, filepath.Join(dir, "nri.sock"))
			good := &nritest.Plugin{Name: "20-good"}
			good.Connect(t, filepath.Join(dir, "nri.sock"))
			_, release, err := h.Hold(t.Context()) // waits for the end of the synchronizations
			if err != nil {
				t.Fatal(err)
			}
			ill.StopReading()
			err = h.RunPodSandbox(t.Context(), largePod())
			release()
			if err != nil {
				t.Errorf("RunPodSandbox: %v", err)
			}
			if !good.Saw("RunPodSandbox large") {
				t.Errorf("the other plugin got %v", good.Events())
			}
			eventually(t, "the connection has ended", func() bool { return !h.Info().Plugins[0].Connected })
			if shown := h.Info().Plugins[0]; shown.Name != "10-ill" || shown.LastEvent != "RunPodSandbox" || !strings.Contains(shown.LastError, "does not read") {
				t.Errorf("berth shows %+v", shown)
			}
		})
	}
}

// TestStoppedLaunchedPlugin: a plugin that Start has started and that is stopped (SIGSTOP) does not
// keep an event waiting, and is killed.
func TestStoppedLaunchedPlugin(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "plugins", "10-self")); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, dir, 20*time.Second, 2*time.Second)
	if err := h.Start(&runtime{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	created, err := h.CreateContainer(t.Context(), &api.PodSandbox{Id: "p"}, &api.Container{Id: "c2"})
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(created.Adjust.GetAnnotations()["pid"])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	created, err = h.CreateContainer(t.Context(), largePod(), &api.Container{Id: "c3"})
	if err != nil || len(created.Adjust.GetEnv()) > 0 {
		t.Errorf("CreateContainer: %v, %v, want no answer of the plugin", created, err)
	}
	// NRI's library kills and reaps it in the background.
	eventually(t, "the plugin has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	if h.table.active() {
		t.Errorf("the plugin is still used: %+v", h.Info())
	}
}

// eventually waits until what is true.
func eventually(t *testing.T, what string, isTrue func() bool) {
	t.Helper()
	for deadline := time.Now().Add(require.Patience(30 * time.Second)); !isTrue(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// largePod is a pod whose message does not fit into the buffer of a socket.
func largePod() *api.PodSandbox {
	return &api.PodSandbox{Id: "p2", Name: "large", Annotations: map[string]string{"large": strings.Repeat("x", 1<<20)}}
}

package podtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/pod"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Parts are what a Service is tested on. They stand for the machine, and outlive
// the daemons that a test kills.
type Parts struct {
	Engine  engine.Engine
	Network network.Network
	Images  image.Store
	// ImageName is an image that has Programs.
	ImageName string
	Programs  enginetest.Programs
	// Sandbox, if not nil, changes a sandbox's config before it is used.
	Sandbox func(*runtimeapi.PodSandboxConfig)
	// Left names what is left on the machine beyond what Engine.List returns; may
	// be nil.
	Left func() []string
	// NRI returns the NRI plugins' host of a Service that starts; may be nil.
	NRI func() *nri.Host
	// Limits of the Services; zero fields take short times that suit tests.
	Limits pod.Limits
	// Observer is that of the Services; may be nil.
	Observer pod.Observer
	// Wrap adds optional interfaces to the engine of a Service; may be nil.
	Wrap func(*EngineOf) engine.Engine
}

// Fake returns parts that are all in memory.
func Fake() *Parts {
	net := &Network{}
	return &Parts{
		Engine: enginetest.NewFake(), Network: net, Images: NewImages(), ImageName: ImageName,
		Programs: enginetest.FakePrograms(), Left: net.Left,
	}
}

// World is one machine on which daemons come and go.
type World struct {
	*Parts
	t        testing.TB
	Dir      string
	StateDir string
	RootDir  string
	LogDir   string
	BootID   string
	// Platforms are those of the next daemon; see pod.Options.
	Platforms func() map[string]string

	scripts map[*pod.Service]*Script
}

// NewWorld returns a machine on which no daemon has run yet.
func NewWorld(t testing.TB, parts *Parts) *World {
	t.Helper()
	dir := t.TempDir()
	w := &World{
		Parts: parts, t: t, Dir: dir, BootID: "boot-1", scripts: map[*pod.Service]*Script{},
		StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root"), LogDir: filepath.Join(dir, "logs"),
	}
	for _, d := range []string{w.StateDir, w.RootDir, w.LogDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// Daemon starts a Service whose every call goes through the script; nil is one
// that lets everything pass. It is closed at the end of the test.
func (w *World) Daemon(script *Script) *pod.Service {
	w.t.Helper()
	s, err := w.TryDaemon(script)
	if err != nil {
		w.t.Fatalf("cannot start the daemon: %v", err)
	}
	return s
}

// TryDaemon is Daemon for starts that may fail.
func (w *World) TryDaemon(script *Script) (*pod.Service, error) {
	if script == nil {
		script = NewScript(nil)
	}
	limits := w.Limits
	if limits == (pod.Limits{}) {
		limits = pod.Limits{Kill: 5 * time.Second, Settle: 2 * time.Second, Batch: time.Millisecond, RetryMin: 20 * time.Millisecond}
	}
	var plugins *nri.Host
	if w.NRI != nil {
		plugins = w.NRI()
	}
	var scripted engine.Engine = &EngineOf{w.Engine, script}
	if w.Wrap != nil {
		scripted = w.Wrap(&EngineOf{w.Engine, script})
	}
	s, err := pod.New(w.t.Context(), pod.Options{
		NRI:    plugins,
		Engine: scripted, Network: &NetworkOf{w.Network, script}, Images: &ImagesOf{w.Images, script},
		StateDir: w.StateDir, RootDir: w.RootDir, BootID: w.BootID, Disk: &Disk{script}, Limits: limits, Observer: w.Observer, Platforms: w.Platforms,
		Log: slog.New(slog.NewTextHandler(testWriter{w.t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	w.scripts[s] = script
	w.t.Cleanup(func() { w.CloseDaemon(s) })
	return s, nil
}

// CloseDaemon closes a Service. One whose daemon is dead may hang in calls that will
// never be answered, so the wait is short and its error of no interest. But what it
// is doing to the machine ends before the next one begins, as with a process that dies.
func (w *World) CloseDaemon(s *pod.Service) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("Close: %v", err)
	}
	Eventually(w.t, "the calls of a closed daemon end", w.scripts[s].quiet)
}

// SandboxConfig returns a request for a sandbox.
func (w *World) SandboxConfig(name string) *runtimeapi.PodSandboxConfig {
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname: name, LogDirectory: w.LogDir, Labels: map[string]string{"app": name},
		Annotations: map[string]string{"note": "of " + name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	if w.Sandbox != nil {
		w.Sandbox(config)
	}
	return config
}

// ContainerConfig returns a request for a container that runs a command.
func (w *World) ContainerConfig(name string, command []string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Command: command, LogPath: name + ".log",
		Image:  &runtimeapi.ImageSpec{Image: w.ImageName},
		Labels: map[string]string{"container": name}, Annotations: map[string]string{"note": "of " + name},
		Envs: []*runtimeapi.KeyValue{{Key: "SECRET", Value: []byte("hunter2")}},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
}

// Leftovers names everything that a Service left on the machine: things of the
// engine and the network, records, attachments, tombstones, files.
func (w *World) Leftovers() []string {
	var left []string
	actual, err := w.Engine.List(context.WithoutCancel(w.t.Context()))
	if err != nil {
		left = append(left, fmt.Sprintf("engine: %v", err))
	}
	for _, a := range actual {
		left = append(left, fmt.Sprintf("%s %s (%s)", a.Kind, a.ID, a.State))
	}
	if w.Left != nil {
		left = append(left, w.Left()...)
	}
	for _, root := range []string{w.StateDir, w.RootDir} {
		walked := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && path != filepath.Join(w.StateDir, "boot") {
				left = append(left, "file "+path)
			}
			return err
		})
		if walked != nil && !errors.Is(walked, fs.ErrNotExist) {
			left = append(left, walked.Error())
		}
	}
	slices.Sort(left)
	return left
}

// Eventually waits until what is true, or fails the test.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

type testWriter struct{ t testing.TB }

// Write drops what a daemon logs after its test, which would panic.
func (w testWriter) Write(line []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", line)
	}
	return len(line), nil
}

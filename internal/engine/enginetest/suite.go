package enginetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Programs are commands that the image under test has.
type Programs struct {
	// Exit ends with the code.
	Exit func(code int) []string
	// Sleep runs until SIGTERM ends it, with 143.
	Sleep []string
	// Ready is what Sleep writes to stdout when it handles SIGTERM; before, the kernel ignores that
	// signal for PID 1. "" if it handles it from its start.
	Ready string
	// Stubborn runs and ignores SIGTERM.
	Stubborn []string
	// Missing cannot be started.
	Missing []string
	// Echo writes the text and a newline to stdout and ends with 0.
	Echo func(text string) []string
	// Cat copies stdin to stdout until stdin ends, and ends with 0.
	Cat []string
}

// Setup is one engine under test, that has nothing, and what it can run.
type Setup struct {
	Engine      engine.Engine
	ImageID     string
	ImageConfig imagespec.ImageConfig
	Programs    Programs
	// Sandbox, if not nil, changes a sandbox's config before it is used (to name
	// a cgroup, to take the host's network).
	Sandbox func(*runtimeapi.PodSandboxConfig)
}

// patience bounds every wait of the suite.
const patience = 30 * time.Second

// Run checks an engine against its contract. setup is called for each case.
func Run(t *testing.T, setup func(t *testing.T) *Setup) {
	cases := map[string]func(*testing.T, *bench){
		"AbsentThings":   testAbsentThings,
		"Lifecycle":      testLifecycle,
		"ExitCodes":      testExitCodes,
		"Signals":        testSignals,
		"KillCreated":    testKillCreated,
		"StartError":     testStartError,
		"RemoveRunning":  testRemoveRunning,
		"HalfMade":       testHalfMade,
		"ExitsAreRetold": testExitsAreRedelivered,
		"Exec":           testExec,
		"ExecCancelled":  testExecCancelled,
		"Log":            testLog,
		"Stats":          testStats,
		"Parallel":       testParallel,
		"Info":           testInfo,
	}
	for name, check := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, setup(t))
			check(t, b)
			b.assertEmpty()
		})
	}
}

// bench is an engine at work in one case.
type bench struct {
	*Setup
	t     *testing.T
	dir   string
	exits *exitLog
	names int
}

func newBench(t *testing.T, setup *Setup) *bench {
	t.Helper()
	b := &bench{Setup: setup, t: t, dir: t.TempDir()}
	b.listen()
	return b
}

// listen starts a new listener, as a new daemon does.
func (b *bench) listen() {
	b.t.Helper()
	if b.exits != nil {
		b.exits.stop()
	}
	b.exits = listenTo(b.t.Context(), b.t, b.Engine)
}

// id returns a new id that people can read.
func (b *bench) id(kind string) string {
	b.names++
	name := kind + string(rune('a'+b.names))
	hexName := strings.Map(func(r rune) rune {
		return rune("0123456789abcdef"[r%16])
	}, b.t.Name()+name)
	return (strings.Repeat("0", 64) + hexName)[len(hexName):]
}

func (b *bench) sandbox() (*engine.SandboxSpec, *engine.Sandbox) {
	b.t.Helper()
	spec := b.sandboxSpec()
	sb, err := b.Engine.CreateSandbox(b.t.Context(), spec)
	if err != nil {
		b.t.Fatalf("CreateSandbox: %v", err)
	}
	b.t.Cleanup(func() { b.removeSandbox(spec.ID) })
	sb, err = b.Engine.StartSandbox(b.t.Context(), spec, sb)
	if err != nil {
		b.t.Fatalf("StartSandbox: %v", err)
	}
	return spec, sb
}

func (b *bench) sandboxSpec() *engine.SandboxSpec {
	id := b.id("sandbox")
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "suite", Namespace: "enginetest", Uid: id[:8]},
		Hostname:     "suite",
		LogDirectory: b.dir,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	if b.Sandbox != nil {
		b.Sandbox(config)
	}
	return &engine.SandboxSpec{ID: id, Config: config, Dir: filepath.Join(b.dir, "sandbox-"+id)}
}

func (b *bench) removeSandbox(id string) {
	ctx := context.WithoutCancel(b.t.Context())
	if err := errors.Join(b.Engine.StopSandbox(ctx, id), b.Engine.ReleaseSandbox(ctx, id), b.Engine.RemoveSandbox(ctx, id)); err != nil {
		b.t.Errorf("cannot remove sandbox: %v", err)
	}
}

func (b *bench) containerSpec(spec *engine.SandboxSpec, sb *engine.Sandbox, command []string) *engine.ContainerSpec {
	id := b.id("container")
	return &engine.ContainerSpec{
		ID: id, SandboxSpec: spec, Sandbox: sb, ImageID: b.ImageID, ImageConfig: b.ImageConfig,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: id[:12]}, Command: command, LogPath: id + ".log",
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: spec.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
			},
		},
		LogPath: filepath.Join(b.dir, id+".log"), Dir: filepath.Join(b.dir, "container-"+id),
	}
}

// container makes a container that has not started.
func (b *bench) container(spec *engine.SandboxSpec, sb *engine.Sandbox, command []string) *engine.ContainerSpec {
	b.t.Helper()
	c := b.containerSpec(spec, sb, command)
	if _, err := b.Engine.Create(b.t.Context(), c); err != nil {
		b.t.Fatalf("Create %v: %v", command, err)
	}
	b.t.Cleanup(func() { b.remove(c.ID) })
	return c
}

func (b *bench) start(id string) (pid int) {
	b.t.Helper()
	pid, err := b.Engine.Start(b.t.Context(), id)
	if err != nil || pid <= 0 {
		b.t.Fatalf("Start = %d, %v", pid, err)
	}
	return pid
}

// terminate sends SIGTERM until the container ends: a program that has only just
// begun has no handler yet, and the kernel drops a signal of pid 1 without a handler.
func (b *bench) terminate(id string) engine.Exit {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !b.exits.has(id) && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := b.Engine.Signal(b.t.Context(), id, syscall.SIGTERM, false); err != nil && !errors.Is(err, errs.NotFound) {
			b.t.Fatalf("Signal %v: %v", syscall.SIGTERM, err)
		}
	}
	return b.exits.of(id)
}

func (b *bench) remove(id string) {
	if err := b.Engine.Remove(context.WithoutCancel(b.t.Context()), id); err != nil {
		b.t.Errorf("cannot remove container: %v", err)
	}
}

func (b *bench) signal(id string, sig syscall.Signal, all bool) {
	b.t.Helper()
	if err := b.Engine.Signal(b.t.Context(), id, sig, all); err != nil {
		b.t.Fatalf("Signal %v: %v", sig, err)
	}
}

// actual returns what List reports of an id, nil for nothing.
func (b *bench) actual(id string) *engine.Actual {
	b.t.Helper()
	all, err := b.Engine.List(b.t.Context())
	if err != nil {
		b.t.Fatalf("List: %v", err)
	}
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

func (b *bench) assertState(id string, want engine.State) {
	b.t.Helper()
	got := b.actual(id)
	if got == nil || got.State != want {
		b.t.Fatalf("List reports %+v of %s, want %s", got, id, want)
	}
	if want == engine.StateRunning && got.Kind == engine.KindContainer && got.Pid <= 0 {
		b.t.Errorf("List reports no pid of a running container: %+v", got)
	}
}

// assertEmpty removes what the case left on purpose and then wants nothing left.
func (b *bench) assertEmpty() {
	b.t.Helper()
	all, err := b.Engine.List(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, kind := range []engine.Kind{engine.KindContainer, engine.KindSandbox} {
		for _, a := range all {
			switch {
			case a.Kind != kind:
			case kind == engine.KindContainer:
				b.remove(a.ID)
			default:
				b.removeSandbox(a.ID)
			}
		}
	}
	if all, err = b.Engine.List(b.t.Context()); err != nil || len(all) > 0 {
		b.t.Errorf("left after everything was removed: %+v, %v", all, err)
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			b.t.Errorf("directory %s is left", e.Name())
		}
	}
	b.exits.stop()
}

func assertKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: error %v, want kind %v", what, err, kind)
	}
}

func assertNotFound(t *testing.T, what string, err error) {
	t.Helper()
	assertKind(t, what, err, errs.NotFound)
}

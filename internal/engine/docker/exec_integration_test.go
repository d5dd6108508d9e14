//go:build integration

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker"
	"github.com/berthrun/berth/internal/require"
)

// pod is a sandbox in which a test runs containers.
type pod struct {
	t     *testing.T
	e     *docker.Engine
	image string
	spec  *engine.SandboxSpec
	sb    *engine.Sandbox
	dir   string
}

// hexID returns an id that ends with a name.
func hexID(name string) string {
	digits := strings.Map(func(r rune) rune { return rune("0123456789abcdef"[r%16]) }, name)
	return (strings.Repeat("0", 64) + digits)[len(digits):]
}

func newPod(t *testing.T, e *docker.Engine, image *dockertest.Image) *pod {
	t.Helper()
	p := &pod{t: t, e: e, image: image.ID, dir: t.TempDir()}
	id := hexID(t.Name())
	p.spec = &engine.SandboxSpec{ID: id, Dir: filepath.Join(p.dir, "sandbox"), Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "truth", Namespace: "default", Uid: id[40:]}, LogDirectory: p.dir,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(e.StopSandbox(ctx, id), e.ReleaseSandbox(ctx, id), e.RemoveSandbox(ctx, id)); err != nil {
			t.Error(err)
		}
	})
	var err error
	if p.sb, err = e.CreateSandbox(t.Context(), p.spec); err != nil {
		t.Fatal(err)
	}
	return p
}

// run starts a container with a shell script. change, if not nil, changes its configuration.
func (p *pod) run(name, script string, change func(*runtimeapi.ContainerConfig)) (id string) {
	p.t.Helper()
	id = hexID(p.t.Name() + name)
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Command: []string{"sh", "-c", script}, LogPath: name + ".log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: p.spec.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
	}
	if change != nil {
		change(config)
	}
	p.t.Cleanup(func() {
		if err := p.e.Remove(context.WithoutCancel(p.t.Context()), id); err != nil {
			p.t.Error(err)
		}
	})
	if _, err := p.e.Create(p.t.Context(), &engine.ContainerSpec{
		ID: id, SandboxSpec: p.spec, Sandbox: p.sb, ImageID: p.image, Config: config,
		LogPath: filepath.Join(p.dir, config.LogPath), Dir: filepath.Join(p.dir, name),
	}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.e.Start(p.t.Context(), id); err != nil {
		p.t.Fatal(err)
	}
	return id
}

// within bounds a session of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), require.Patience(time.Minute))
	t.Cleanup(stop)
	return ctx
}

// exec runs a shell script and returns its code.
func (p *pod) exec(spec engine.ExecSpec, script string) int32 {
	p.t.Helper()
	spec.Command = []string{"sh", "-c", script}
	code, err := p.e.Exec(within(p.t), &spec)
	if err != nil {
		p.t.Errorf("exec %q: %v", script, err)
	}
	return code
}

// watched is an output; seen is closed when it contains a text.
type watched struct {
	mu   sync.Mutex
	text bytes.Buffer
	want string
	seen chan struct{}
}

func watch(want string) *watched { return &watched{want: want, seen: make(chan struct{})} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	had := strings.Contains(w.text.String(), w.want)
	w.text.Write(p)
	if !had && strings.Contains(w.text.String(), w.want) {
		close(w.seen)
	}
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// afterSeen is an input that begins once an output has a text.
type afterSeen struct {
	output *watched
	io.Reader
}

func (a *afterSeen) Read(p []byte) (int, error) {
	<-a.output.seen
	return a.Reader.Read(p)
}

// ending is an input that ends at once. over is closed with the end.
type ending struct {
	once sync.Once
	over chan struct{}
}

func (e *ending) Read([]byte) (int, error) {
	e.once.Do(func() { close(e.over) })
	return 0, io.EOF
}

// TestSessions: what programs write arrives whole, and codes are true.
func TestSessions(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	image := dockertest.LoadImage(t, d)
	p := newPod(t, newEngine(t, d), image)
	c := p.run("sleeps", "exec sleep 100000", nil)

	t.Run("terminal output in parts", func(t *testing.T) {
		out := watch("one")
		p.exec(engine.ExecSpec{ContainerID: c, TTY: true, Stdin: &afterSeen{out, strings.NewReader("go\n")}, Stdout: out}, "echo one; read x; echo two")
		if text := out.String(); !strings.Contains(text, "two") {
			t.Errorf("the terminal's output is %q", text)
		}
	})
	t.Run("terminal without more input", func(t *testing.T) {
		out, input := watch("late"), &ending{over: make(chan struct{})}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.exec(engine.ExecSpec{ContainerID: c, TTY: true, Stdin: input, Stdout: out}, "while [ ! -e /tmp/go ]; do sleep 0.02; done; echo late")
		}()
		<-input.over
		p.exec(engine.ExecSpec{ContainerID: c}, "touch /tmp/go") // a whole session, of which the other's input has ended before
		<-ended
		if text := out.String(); !strings.Contains(text, "late") {
			t.Errorf("the terminal's output is %q", text)
		}
	})
	t.Run("codes of quick commands", func(t *testing.T) {
		var g sync.WaitGroup
		for i := range 4 {
			g.Go(func() {
				for j := range 4 {
					want := int32(1 + 4*i + j)
					if code, err := p.e.Exec(within(t), &engine.ExecSpec{ContainerID: c, Command: []string{"sh", "-c", "exit $0", strconv.Itoa(int(want))}}); code != want || err != nil {
						t.Errorf("Exec = %d, %v, want %d", code, err, want)
					}
				}
			})
		}
		g.Wait()
	})
	t.Run("a child keeps the output open", func(t *testing.T) {
		var out bytes.Buffer
		p.exec(engine.ExecSpec{ContainerID: c, Stdout: &out}, "echo begun; sleep 100000 &")
		if out.String() != "begun\n" {
			t.Errorf("the output is %q", out.String())
		}
	})
	t.Run("a command whose output cannot be delivered leaves nothing", func(t *testing.T) {
		spec := &engine.ExecSpec{ContainerID: c, Command: []string{"sh", "-c", "echo begun; exec sleep 27182"}, Stdout: failing{watch("begun")}}
		if _, err := p.e.Exec(within(t), spec); !errors.Is(err, errClientGone) {
			t.Error(err)
		}
		if left := processesWith("27182"); len(left) > 0 {
			t.Errorf("left are %q", left)
		}
	})
	t.Run("a cancelled command leaves nothing", func(t *testing.T) {
		for name, script := range map[string]string{
			"it runs":   "exec 3>&1; setsid sh -c 'sleep 31415' & (sleep 31415 &) ; echo begun; while :; do sleep 1; done",
			"it ended":  "setsid sh -c 'trap \"\" TERM; while :; do echo begun; sleep 0.1; done' & exit 0",
			"it starts": "",
		} {
			ctx, stop := context.WithCancel(within(t))
			spec := &engine.ExecSpec{ContainerID: c, Command: []string{"sh", "-c", ": $0; " + script, "leftover"}}
			out := watch("begun")
			spec.Stdout = out
			if name == "it ended" {
				spec.Stdout = &blocked{out, ctx.Done()}
			}
			if script == "" {
				spec.Command = []string{"sleep", "31415"}
				stop()
			} else {
				go func() {
					<-out.seen
					stop()
				}()
			}
			if _, err := p.e.Exec(ctx, spec); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
			stop()
			if left := processesWith("31415", "leftover"); len(left) > 0 {
				t.Errorf("%s: left are %q", name, left)
			}
		}
	})
}

// failing is an output whose client is gone once it has got a text.
type failing struct{ *watched }

var errClientGone = errors.New("the client is gone")

func (f failing) Write(p []byte) (int, error) {
	n, err := f.watched.Write(p)
	select {
	case <-f.seen:
		return 0, errClientGone
	default:
		return n, err
	}
}

// TestCloseLeavesNoConnection: the listener of exits, the logs that are followed and idle calls hold
// connections to the engine until Close.
func TestCloseLeavesNoConnection(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	p := newPod(t, newEngine(t, d), dockertest.LoadImage(t, d))
	p.run("sleeps", "echo begun; exec sleep 100000", nil)
	before := sockets(t)
	var exits <-chan engine.Exit
	t.Run("a second engine", func(t *testing.T) {
		e := newEngine(t, d)
		var err error
		if exits, err = e.Exits(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		if _, err := e.List(t.Context()); err != nil { // it follows the log
			t.Fatal(err)
		}
		for deadline := time.Now().Add(require.Patience(20 * time.Second)); sockets(t) < before+2; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d sockets, were %d: nothing is followed", sockets(t), before)
			}
		}
	}) // its engine is closed
	for range exits { // and this, too
	}
	for deadline := time.Now().Add(require.Patience(20 * time.Second)); sockets(t) > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d sockets, were %d", sockets(t), before)
		}
	}
}

// sockets counts those of this process.
func sockets(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if target, _ := os.Readlink("/proc/self/fd/" + file.Name()); strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// blocked is an output whose client does not read until the session ends.
type blocked struct {
	*watched
	ended <-chan struct{}
}

func (b *blocked) Write(p []byte) (int, error) {
	n, err := b.watched.Write(p)
	<-b.ended
	return n, err
}

// processesWith returns the command lines that have one of the words as an argument.
func processesWith(words ...string) []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, word := range words {
			if strings.Contains(string(line), "\x00"+word+"\x00") {
				found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
	}
	return found
}

package podrun

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/errs"
)

// scene is a keeper that runs on a fake runtime.
type scene struct {
	t             *testing.T
	runtime       *fakeRuntime
	opts          Options
	out, said     *text
	cancel        context.CancelFunc
	kill          chan struct{}
	code          int
	err           error
	done          chan struct{}
	volumes, logs string
}

// text is a buffer that can be read while it is written.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

func newScene(t *testing.T, yaml string, f *fakeRuntime) *scene {
	t.Helper()
	b, err := podyaml.Parse([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n" + yaml))
	if err != nil {
		t.Fatal(err)
	}
	bundle := b.Pods()[0]
	s := &scene{
		t: t, runtime: f, out: &text{}, said: &text{}, kill: make(chan struct{}), done: make(chan struct{}),
		volumes: t.TempDir(), logs: t.TempDir(),
	}
	s.opts = Options{
		Conn: serve(t, f), Bundle: bundle, ClaimBase: t.TempDir(), VolumeBase: s.volumes, LogBase: s.logs,
		Out: s.out, Err: s.out, Say: s.said, Kill: s.kill,
		Timings: Timings{Poll: 5 * time.Millisecond, BackoffMin: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond},
	}
	return s
}

// run runs the keeper to its end, or until the test ends it.
func (s *scene) run() {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.cancel = cancel
	go func() {
		defer close(s.done)
		defer cancel()
		s.code, s.err = Run(ctx, s.opts)
	}()
}

func (s *scene) wait() {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		s.t.Fatalf("the keeper does not end; it called %q and said %q", s.runtime.noted(), s.said.String())
	}
	if s.err != nil {
		s.t.Errorf("the keeper failed: %v", s.err)
	}
}

// until waits until a condition is true that the keeper causes.
func (s *scene) until(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s did not come about; the keeper called %q and said %q", what, s.runtime.noted(), s.said.String())
		}
	}
}

func (s *scene) called(call string) func() bool {
	return func() bool { return slices.Contains(s.runtime.noted(), call) }
}

// exits returns a program that writes says and then exits at once.
func exits(code int32, writes string) program {
	return func(c *fakeContainer) int32 {
		if writes != "" {
			c.log(writes)
		}
		return code
	}
}

// serves returns a program that runs until it is stopped.
func serves(code int32) program {
	return func(c *fakeContainer) int32 {
		<-c.stop
		c.log("stopped")
		return code
	}
}

const two = `
  restartPolicy: Never
  initContainers: [{name: one, image: "x:1"}, {name: two, image: "x:1"}]
  containers: [{name: a, image: "x:1"}, {name: b, image: "x:1"}]
`

func TestOrderOutputAndExitCode(t *testing.T) {
	s := newScene(t, two, &fakeRuntime{programs: map[string]program{
		"one": exits(0, "first"), "two": exits(0, "second"), "a": exits(0, "hello"), "b": exits(7, "oh no"),
	}})
	s.run()
	s.wait()
	if s.code != 7 {
		t.Errorf("exit code %d", s.code)
	}
	calls := s.runtime.noted()
	before := func(a, b string) {
		t.Helper()
		if i, j := slices.Index(calls, a), slices.Index(calls, b); i < 0 || j < 0 || i > j {
			t.Errorf("%q is not before %q in %q", a, b, calls)
		}
	}
	before("run sandbox", "create one-0")
	before("end one-0", "create two-0")
	before("end two-0", "create a-0")
	before("end two-0", "create b-0")
	before("end b-0", "stop sandbox")
	for _, want := range []string{"one | first\n", "two | second\n", "a | hello\n", "b | oh no\n"} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("the output lacks %q: %q", want, s.out.String())
		}
	}
	if entries, _ := os.ReadDir(s.logs); len(entries) != 1 {
		t.Errorf("the logs are gone: %v", entries)
	}
}

func TestFailedInitEndsThePod(t *testing.T) {
	s := newScene(t, two, &fakeRuntime{programs: map[string]program{"one": exits(3, "")}})
	s.run()
	s.wait()
	if s.code != 3 || s.called("create a-0")() {
		t.Errorf("code %d, calls %q", s.code, s.runtime.noted())
	}
	if !strings.Contains(s.said.String(), "init container one failed with exit code 3") {
		t.Errorf("said %q", s.said.String())
	}
}

func TestOnFailureRestartsWithAnotherAttempt(t *testing.T) {
	var runs atomic.Int32
	s := newScene(t, `
  restartPolicy: OnFailure
  containers: [{name: a, image: "x:1"}]
`, &fakeRuntime{programs: map[string]program{"a": func(c *fakeContainer) int32 {
		n := runs.Add(1)
		c.log("run " + strconv.Itoa(int(n)))
		return max(0, 3-n)
	}}})
	s.run()
	s.wait()
	if s.code != 0 || runs.Load() != 3 {
		t.Errorf("code %d after %d runs", s.code, runs.Load())
	}
	if s.out.String() != "run 1\nrun 2\nrun 3\n" {
		t.Errorf("the output is %q", s.out.String())
	}
	if n := len(s.runtime.containers); n != 2 {
		t.Errorf("%d containers are left, want the last and, for its logs, the one before", n)
	}
}

const onFailure = `
  restartPolicy: OnFailure
  containers: [{name: a, image: "x:1"}]
`

// TestAttemptThatStaysStartsNoSecond: an old attempt that cannot be removed does not mean that the new one has failed.
func TestAttemptThatStaysStartsNoSecond(t *testing.T) {
	var runs atomic.Int32
	s := newScene(t, onFailure, &fakeRuntime{
		programs: map[string]program{"a": func(*fakeContainer) int32 {
			if runs.Add(1) < 3 {
				return 1
			}
			time.Sleep(100 * time.Millisecond) // time for a wrong restart
			return 0
		}},
		removes: func(id string) error { return fmt.Errorf("%s is busy: %w", id, errs.State) },
	})
	s.run()
	s.wait()
	if s.code != 0 || runs.Load() != 3 {
		t.Errorf("code %d after %d runs; called %q", s.code, runs.Load(), s.runtime.noted())
	}
	if !strings.Contains(s.said.String(), "a: its attempt 0 is left until the pod is removed: a-0 is busy") {
		t.Errorf("said %q", s.said.String())
	}
}

// TestAttemptsThatDoNotStartDoNotPileUp: each try leaves nothing of the one before.
func TestAttemptsThatDoNotStartDoNotPileUp(t *testing.T) {
	s := newScene(t, onFailure, &fakeRuntime{
		programs: map[string]program{"a": func(c *fakeContainer) int32 { return max(0, 1-int32(c.config.Metadata.Attempt)) }},
		starts: func(id string) error {
			if id == "a-1" || id == "a-2" {
				return fmt.Errorf("a mount of %s is gone: %w", id, errs.State)
			}
			return nil
		},
	})
	s.run()
	s.wait()
	if s.code != 0 || !s.called("start a-3")() {
		t.Errorf("code %d, calls %q", s.code, s.runtime.noted())
	}
	if n := len(s.runtime.containers); n != 2 {
		t.Errorf("%d containers are left, want the last and, for its logs, the one before", n)
	}
}

func TestInterruptStopsWithGrace(t *testing.T) {
	s := newScene(t, `
  terminationGracePeriodSeconds: 12
  containers: [{name: a, image: "x:1"}]
`, &fakeRuntime{programs: map[string]program{"a": serves(143)}})
	s.opts.Remove = true
	s.run()
	s.until("readiness", func() bool { return strings.Contains(s.said.String(), "pod default/web is ready") })
	s.cancel()
	s.wait()
	if s.code != 143 {
		t.Errorf("exit code %d", s.code)
	}
	calls := s.runtime.noted()
	if tail := calls[len(calls)-4:]; !slices.Equal(tail, []string{"stop a-0 in 12", "end a-0", "stop sandbox", "remove sandbox"}) {
		t.Errorf("calls end with %q", tail)
	}
	if s.out.String() != "stopped\n" {
		t.Errorf("the last words are lost: %q", s.out.String())
	}
	for _, dir := range []string{s.volumes, s.logs} {
		if entries, _ := os.ReadDir(dir); len(entries) != 0 {
			t.Errorf("%s still has %v", dir, entries)
		}
	}
}

func TestSecondInterruptKills(t *testing.T) {
	s := newScene(t, `
  containers: [{name: a, image: "x:1"}]
`, &fakeRuntime{programs: map[string]program{"a": func(c *fakeContainer) int32 {
		<-t.Context().Done() // ignores the stop signal
		return 0
	}}})
	s.run()
	s.until("start", s.called("start a-0"))
	s.cancel()
	s.until("stop", s.called("stop a-0 in 30"))
	close(s.kill)
	s.wait()
	if s.code != 137 || !s.called("stop a-0 in 0")() {
		t.Errorf("code %d, calls %q", s.code, s.runtime.noted())
	}
}

func TestLivenessRestarts(t *testing.T) {
	s := newScene(t, `
  containers:
    - name: a
      image: "x:1"
      livenessProbe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 1}
`, &fakeRuntime{
		programs: map[string]program{"a": serves(0)},
		exec: func(id string, _ []string) (int32, error) {
			if id == "a-0" {
				return 1, nil
			}
			return 0, nil
		},
	})
	s.run()
	s.until("restart", s.called("start a-1"))
	s.cancel()
	s.wait()
	if !strings.Contains(s.said.String(), "a fails its liveness probe: exit code 1") {
		t.Errorf("said %q", s.said.String())
	}
}

// If the runtime is unavailable, the state of the container is unknown.
func TestProbeThatCannotTakePlaceCountsForNothing(t *testing.T) {
	var probes atomic.Int32
	s := newScene(t, `
  containers:
    - name: a
      image: "x:1"
      livenessProbe: {exec: {command: [check]}, periodSeconds: 1, failureThreshold: 1}
`, &fakeRuntime{
		programs: map[string]program{"a": serves(0)},
		exec: func(string, []string) (int32, error) {
			probes.Add(1)
			return 0, fmt.Errorf("the supervisor restarts: %w", errs.Unavailable)
		},
	})
	s.run()
	s.until("two probes", func() bool { return probes.Load() >= 2 })
	if s.called("stop a-0 in 30")() || strings.Contains(s.said.String(), "fails") {
		t.Errorf("called %q, said %q", s.runtime.noted(), s.said.String())
	}
	s.cancel()
	s.wait()
}

func TestReadinessByHTTPAndTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go answerHTTP(l)
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	s := newScene(t, `
  containers:
    - name: a
      image: "x:1"
      ports: [{name: http, containerPort: `+port+`}]
      readinessProbe: {httpGet: {path: /ok, port: http}, periodSeconds: 1}
    - name: b
      image: "x:1"
      readinessProbe: {tcpSocket: {port: `+port+`}, periodSeconds: 1}
    - name: c
      image: "x:1"
      startupProbe: {httpGet: {path: /bad, port: `+port+`}, periodSeconds: 1, failureThreshold: 1}
`, &fakeRuntime{programs: map[string]program{"a": serves(0), "b": serves(0), "c": serves(0)}})
	s.run()
	s.until("failure of c", func() bool {
		return strings.Contains(s.said.String(), "c fails its startup probe") && strings.Contains(s.said.String(), "500")
	})
	if strings.Contains(s.said.String(), "is ready") {
		t.Errorf("the pod is ready without c: %q", s.said.String())
	}
	s.cancel()
	s.wait()
}

func answerHTTP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		buf := make([]byte, 1024)
		n, _ := c.Read(buf)
		answer := "HTTP/1.0 500 Bad\r\n\r\n"
		if strings.HasPrefix(string(buf[:n]), "GET /ok ") {
			answer = "HTTP/1.0 302 Elsewhere\r\nLocation: http://elsewhere.example/\r\n\r\n"
		}
		c.Write([]byte(answer))
		c.Close()
	}
}

func TestSidecarRunsBesideAndIsStoppedLast(t *testing.T) {
	s := newScene(t, `
  restartPolicy: Never
  initContainers: [{name: side, image: "x:1", restartPolicy: Always}, {name: one, image: "x:1"}]
  containers: [{name: a, image: "x:1"}]
`, &fakeRuntime{programs: map[string]program{"side": serves(9), "one": exits(0, ""), "a": exits(0, "")}})
	s.run()
	s.wait()
	if s.code != 0 {
		t.Errorf("exit code %d", s.code)
	}
	calls := s.runtime.noted()
	if slices.Index(calls, "start side-0") > slices.Index(calls, "create one-0") || slices.Index(calls, "end a-0") > slices.Index(calls, "stop side-0 in 30") {
		t.Errorf("calls %q", calls)
	}
}

func TestDeadlineOfThePod(t *testing.T) {
	s := newScene(t, `
  activeDeadlineSeconds: 1
  containers: [{name: a, image: "x:1"}]
`, &fakeRuntime{programs: map[string]program{"a": serves(0)}})
	s.run()
	s.wait()
	if s.code != 1 || !strings.Contains(s.said.String(), "activeDeadlineSeconds") {
		t.Errorf("code %d, said %q", s.code, s.said.String())
	}
}

func TestStopBySomebodyElseEndsTheKeeper(t *testing.T) {
	s := newScene(t, `
  containers: [{name: a, image: "x:1"}]
`, &fakeRuntime{programs: map[string]program{"a": serves(0)}})
	s.run()
	s.until("start", s.called("start a-0"))
	s.runtime.mu.Lock()
	s.runtime.sandboxes["sandbox"].ready = false
	close(s.runtime.containers["a-0"].stop)
	s.runtime.mu.Unlock()
	s.wait()
	if !strings.Contains(s.said.String(), "something else stopped the pod") {
		t.Errorf("said %q", s.said.String())
	}
}

func TestWhatCannotStartEndsThePod(t *testing.T) {
	s := newScene(t, `
  containers: [{name: a, image: "x:1"}, {name: nosuch, image: "x:1"}]
`, &fakeRuntime{programs: map[string]program{"a": serves(0)}})
	s.opts.Remove = true
	s.run()
	s.wait()
	if s.code != 1 || !strings.Contains(s.said.String(), "no program for nosuch") || !s.called("remove sandbox")() {
		t.Errorf("code %d, said %q, called %q", s.code, s.said.String(), s.runtime.noted())
	}
}

func TestASecondPodOfTheNameIsRefused(t *testing.T) {
	f := &fakeRuntime{}
	s := newScene(t, "  containers: [{name: a, image: \"x:1\"}]\n", f)
	f.sandboxes["sandbox"] = &fakeSandbox{ready: true, config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default"},
	}}
	_, err := Run(t.Context(), s.opts)
	if err == nil || !strings.Contains(err.Error(), "a pod of this name runs") {
		t.Errorf("got %v", err)
	}
}

func TestRunAsNonRoot(t *testing.T) {
	for user, want := range map[*runtimeapi.Image]string{
		{Id: "1"}:                  "it would run as root",
		{Id: "1", Username: "www"}: "which may be root",
		{Id: "1", Uid: &runtimeapi.Int64Value{Value: 5}}: "",
	} {
		s := newScene(t, `
  restartPolicy: Never
  securityContext: {runAsNonRoot: true}
  containers: [{name: a, image: "x:1"}]
`, &fakeRuntime{image: user, programs: map[string]program{"a": exits(0, "")}})
		_, err := Run(t.Context(), s.opts)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: got %v", user, err)
		}
	}
}

func TestStartLeavesThePodRunning(t *testing.T) {
	s := newScene(t, two, &fakeRuntime{programs: map[string]program{
		"one": exits(0, ""), "two": exits(0, ""), "a": serves(0), "b": serves(0),
	}})
	s.opts.Out, s.opts.Err = nil, nil
	k, err := start(t.Context(), s.opts)
	if err != nil || k.sandboxID != "sandbox" {
		t.Fatalf("got %+v, %v", k, err)
	}
	if s.called("stop sandbox")() || !s.called("start b-0")() {
		t.Errorf("calls %q", s.runtime.noted())
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	s := newScene(t, two, &fakeRuntime{programs: map[string]program{
		"one": exits(0, ""), "two": exits(0, ""), "a": serves(0),
	}})
	s.opts.Out, s.opts.Err = nil, nil
	if _, err := start(t.Context(), s.opts); err == nil {
		t.Fatal("b has no program, and start succeeded")
	}
	for _, want := range []string{"end a-0", "stop sandbox", "remove sandbox"} {
		if !s.called(want)() {
			t.Errorf("no %q in %q", want, s.runtime.noted())
		}
	}
	if entries, _ := os.ReadDir(s.logs); len(entries) != 0 {
		t.Errorf("logs are left: %v", entries)
	}
}

func TestPullPolicy(t *testing.T) {
	for image, want := range map[string]string{
		"busybox": "Always", "busybox:latest": "Always", "busybox:1": "IfNotPresent", "reg:5000/busybox": "Always",
		"reg:5000/busybox:1": "IfNotPresent", "busybox@sha256:0": "IfNotPresent",
	} {
		b, err := podyaml.Parse([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: \"" + image + "\"}]}"))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(pullPolicy(image, b.Pods()[0].Pod.Spec.Containers[0].ImagePullPolicy)); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

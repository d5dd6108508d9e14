package leak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/sessions"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SessionOptions of a run of RunSessions.
type SessionOptions struct {
	// Sessions in all, Parallel at a time.
	Sessions, Parallel int
	// MemoryKiB is how much more memory the processes may have at most in the second half than in
	// the first. What rises and falls belongs to the garbage collector.
	MemoryKiB int64
}

// looks is how often the test measures the processes in a run.
const looks = 10

// RunSessions runs execs, attaches to a container and forwards ports, by gRPC, SPDY and WebSocket,
// with and without terminals. It fails the test if something is left in berth's processes or on the
// host.
func RunSessions(t *testing.T, opts SessionOptions) {
	b := harness.Start(t, harness.Options{Args: []string{"--log-level", "warn"}})
	b.NeedsPart(t, harness.Supervisors) // it measures all three processes
	s := newTarget(t, b)
	s.run(t, 4*opts.Parallel, opts.Parallel)
	goroutines := quit(t, b)
	s.run(t, 4*opts.Parallel, opts.Parallel)
	ground, first := s.rest(t, nil)
	t.Logf("at first: %s", first)

	began := time.Now()
	var last state
	var peaks [2]int64
	for i := range looks {
		s.run(t, opts.Sessions/looks, opts.Parallel)
		_, last = s.rest(t, ground)
		half := i * 2 / looks
		peaks[half] = max(peaks[half], last.memory.sum())
		t.Logf("after %d (%s): %s", (i+1)*opts.Sessions/looks, time.Since(began).Round(time.Second), last)
	}
	t.Logf("%s", s.counts())
	if more := peaks[1] - peaks[0]; more > opts.MemoryKiB {
		t.Errorf("%d KiB at most in the second half, %d KiB more than in the first, want at most %d", peaks[1], more, opts.MemoryKiB)
	}
	for name, threads := range last.threads {
		// Go keeps the threads that it needed once.
		if was := first.threads[name]; threads > was+2*opts.Parallel {
			t.Errorf("the %s has %d threads, had %d", name, threads, was)
		}
	}
	for name, now := range quit(t, b) {
		t.Logf("goroutines of the %s: %d, were %d", name, now, goroutines[name])
		if now > goroutines[name]+spare {
			t.Errorf("%d goroutines in the %s, were %d", now, name, goroutines[name])
		}
	}
	b.AwaitDaemon()
}

// echoPort is where a server in the pod echoes its input.
const echoPort = 8080

// target is one pod that sessions use: one container echoes the input of attached clients, the
// other serves a port that echoes.
type target struct {
	b             *harness.Berth
	pod           harness.Pod
	echo          string
	spdy, webSock *sessions.Client
	next          atomic.Int64

	mu   sync.Mutex
	done map[string]int
}

func newTarget(t *testing.T, b *harness.Berth) *target {
	t.Helper()
	s := &target{
		b: b, done: map[string]int{},
		spdy: &sessions.Client{Berth: b}, webSock: &sessions.Client{Berth: b, WebSocket: true},
	}
	sandbox := b.Sandbox("guests")
	s.pod = harness.Pod{Config: sandbox, Sandbox: b.RunSandbox(sandbox)}
	run := func(config *runtimeapi.ContainerConfig) string {
		// Most of an exec's time is the compilation of its filter, in another process.
		config.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		id := b.Create(s.pod.Sandbox, config, sandbox)
		b.StartContainer(id)
		return id
	}
	s.pod.Container = run(b.Container("server", fmt.Sprintf("exec nc -ll -p %d -e /bin/cat", echoPort)))
	config := b.Container("echo", "while read word; do echo heard $word; done")
	config.Stdin = true
	s.echo = run(config)
	b.Await("the echo server", func() bool {
		return strings.Contains(b.ExecOut(s.pod.Container, "netstat -ltn"), fmt.Sprint(":", echoPort))
	})
	return s
}

// run runs n sessions.
func (s *target) run(t *testing.T, n, parallel int) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(parallel)
	for range n {
		i := int(s.next.Add(1))
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			kinds := s.kinds()
			kind := kinds[i%len(kinds)]
			if err := kind.run(ctx, i); err != nil {
				return fmt.Errorf("%s %d: %w", kind.name, i, err)
			}
			s.mu.Lock()
			s.done[kind.name]++
			s.mu.Unlock()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

type kind struct {
	name string
	run  func(ctx context.Context, i int) error
}

func (s *target) kinds() []kind {
	return []kind{
		{"exec by gRPC", s.execSync},
		{"port-forward by SPDY", s.forward(s.spdy)},
		{"exec by SPDY", s.exec(s.spdy)},
		{"attach by WebSocket", s.attach(s.webSock)},
		{"exec by gRPC", s.execSync},
		{"exec that is cut", s.cutExec},
		{"exec by WebSocket", s.exec(s.webSock)},
		{"port-forward by WebSocket", s.forward(s.webSock)},
		{"exec of nothing", s.execNothing},
		{"attach by SPDY", s.attach(s.spdy)},
		{"exec on a terminal", s.execTerminal},
	}
}

func (s *target) execSync(ctx context.Context, i int) error {
	answer, err := s.b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: s.pod.Container, Cmd: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i%100)}, Timeout: 100,
	})
	if err == nil && (answer.ExitCode != int32(i%100) || string(answer.Stdout) != fmt.Sprintln(i)) {
		err = fmt.Errorf("code %d, %q", answer.ExitCode, answer.Stdout)
	}
	return err
}

// cutExec leaves a command and a child of it, alternately by a timeout and by a client that
// disconnects.
func (s *target) cutExec(ctx context.Context, i int) error {
	cmd := []string{"/bin/sh", "-c", "sleep 100000 & echo begun; sleep 100000"}
	if i%40 == 0 {
		_, err := s.b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: s.pod.Container, Cmd: cmd, Timeout: 1})
		if err == nil || !strings.Contains(err.Error(), "timed out") {
			return fmt.Errorf("over its time-out: %w", err)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := &listener{word: "begun", done: cancel}
	if _, err := s.spdy.Exec(ctx, s.pod.Container, sessions.Streams{Stdout: heard}, cmd...); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a client that left got %w", err)
	}
	return nil
}

func (s *target) execNothing(ctx context.Context, _ int) error {
	_, err := s.b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: s.pod.Container, Cmd: []string{"no-such"}, Timeout: 100})
	if err == nil || !strings.Contains(err.Error(), "executable file not found in $PATH") {
		return fmt.Errorf("got %w", err)
	}
	return nil
}

func (s *target) exec(c *sessions.Client) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		var out bytes.Buffer
		code, err := c.Exec(ctx, s.pod.Container, sessions.Streams{
			Stdin: strings.NewReader(fmt.Sprint(i)), Stdout: &out, Stderr: io.Discard,
		}, "/bin/sh", "-c", fmt.Sprintf("cat; exit %d", i%100))
		if err == nil && (code != i%100 || out.String() != fmt.Sprint(i)) {
			err = fmt.Errorf("code %d, %q", code, out.String())
		}
		return err
	}
}

func (s *target) execTerminal(ctx context.Context, i int) error {
	var out bytes.Buffer
	code, err := s.webSock.Exec(ctx, s.pod.Container, sessions.Streams{
		Stdin: strings.NewReader(fmt.Sprintln("word", i)), Stdout: &out, Tty: true,
	}, "/bin/sh", "-c", "read word; echo got $word; exit 3")
	if err == nil && (code != 3 || !strings.Contains(out.String(), fmt.Sprint("got word ", i))) {
		err = fmt.Errorf("code %d, %q", code, out.String())
	}
	return err
}

// attach sends a line that the container repeats, reads it among the lines of others, and
// disconnects.
func (s *target) attach(c *sessions.Client) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		in, say := io.Pipe()
		defer say.Close()
		heard := &listener{word: fmt.Sprintf("heard me-%d.", i), done: cancel}
		go func() { _, _ = fmt.Fprintf(say, "me-%d.\n", i) }() // it fails when the session does
		err := c.Attach(ctx, s.echo, sessions.Streams{Stdin: in, Stdout: heard})
		if !heard.has.Load() {
			return fmt.Errorf("the container was not heard: %w", err)
		}
		return nil
	}
}

// forward sends a line on each of several streams of a connection.
func (s *target) forward(c *sessions.Client) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		f, err := c.Forward(ctx, s.pod.Sandbox)
		if err != nil {
			return err
		}
		defer f.Close()
		for stream := range 3 {
			text := fmt.Sprintf("%d on %d", i, stream)
			if answer, err := f.Say(echoPort, text); err != nil || answer != text {
				return fmt.Errorf("%q, %w", answer, err)
			}
		}
		if _, err := f.Say(echoPort+1, "nobody"); err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("of a port where nobody listens: %w", err)
		}
		return nil
	}
}

// listener waits for a word in the output.
type listener struct {
	word string
	done func()
	has  atomic.Bool
	tail string
}

func (l *listener) Write(p []byte) (int, error) {
	l.tail += string(p)
	if strings.Contains(l.tail, l.word) {
		l.has.Store(true)
		l.done()
	}
	l.tail = l.tail[max(0, len(l.tail)-len(l.word)):]
	return len(p), nil
}

// state is what berth's processes have when idle.
type state struct {
	memory       usage
	fds, threads map[string]int
}

func (s state) String() string {
	return fmt.Sprintf("PSS %s; descriptors %v; threads %v", s.memory, s.fds, s.threads)
}

// rest waits until nothing of the sessions is left, then measures. With before, it waits for the
// same state as before.
func (s *target) rest(t *testing.T, before harness.Ground) (harness.Ground, state) {
	t.Helper()
	now := s.b.StillGround()
	if before == nil {
		// The next supervisor ends a session that a supervisor's death interrupted, if no client
		// returns.
		isExec := func(key string) bool { return strings.Contains(key, "/exec-") }
		for deadline := time.Now().Add(require.Patience(cleanupTimeout)); slices.ContainsFunc(slices.Collect(maps.Keys(now)), isExec); {
			if time.Now().After(deadline) {
				t.Fatalf("commands do not end: %v", now)
			}
			now = s.b.StillGround()
		}
	} else {
		if left := s.b.AwaitGround(before, cleanupTimeout); left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	}
	st := state{usage{}, map[string]int{}, map[string]int{}}
	for name, pid := range processes(s.b) {
		st.memory[name] = pss(t, pid)
		for dir, into := range map[string]map[string]int{"fd": st.fds, "task": st.threads} {
			entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, dir))
			if err != nil {
				t.Fatal(err)
			}
			into[name] = len(entries)
		}
	}
	return now, st
}

// counts is the number of sessions of each kind.
func (s *target) counts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(s.done)) {
		lines = append(lines, fmt.Sprintf("%d x %s", s.done[name], name))
	}
	return strings.Join(lines, ", ")
}

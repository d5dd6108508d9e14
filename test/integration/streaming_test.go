//go:build integration

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/sessions"
)

func TestStreamingRules(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, test := range map[string]func(*testing.T, *harness.Berth){
		"exec by every protocol":                      streamExec,
		"terminal follows its client's size":          streamTerminal,
		"URL is good once":                            streamURLIsGoodOnce,
		"attach fans out, the slow one gets an error": streamAttachFansOut,
		"attach once closes the input":                streamStdinOnce,
		"attach honours stdin false":                  streamNoStdin,
		"attach goes on over supervisor's death":      streamAttachOverDeath,
		"attach of what does not run is refused":      streamAttachRefused,
		"forward reaches the pod's own ports":         streamForward,
		"forward over many streams at once":           streamForwardMany,
	} {
		t.Run(name, func(t *testing.T) {
			mine := *b
			mine.T = t
			test(t, &mine)
		})
	}
}

// both are the clients of both protocols.
func both(b *harness.Berth) map[string]*sessions.Client {
	return map[string]*sessions.Client{
		"SPDY": {Berth: b}, "WebSocket": {Berth: b, WebSocket: true},
	}
}

func streamExec(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("stream-exec", "sleep 100000")
	for name, c := range both(b) {
		var out, errOut bytes.Buffer
		// The client closes its input, and the command reads the end of file.
		code, err := c.Exec(b.Ctx(), pod.Container, sessions.Streams{
			Stdin: strings.NewReader(strings.Repeat("0123456789", 50_000)), Stdout: &out, Stderr: &errOut,
		}, "/bin/sh", "-c", "wc -c; echo complaint >&2; exit 42")
		if err != nil || code != 42 || strings.TrimSpace(out.String()) != "500000" || errOut.String() != "complaint\n" {
			t.Errorf("%s: code %d, %q, %q, %v", name, code, out.String(), errOut.String(), err)
		}
		_, err = c.Exec(b.Ctx(), pod.Container, sessions.Streams{Stdout: io.Discard}, "no-such")
		if err == nil || !namesMissingProgram(err.Error()) {
			t.Errorf("%s: a program that is not there: %v", name, err)
		}
	}
	b.RemovePod(pod.Sandbox)
}

// sizes is a terminal that takes each of these sizes in turn.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func streamTerminal(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("stream-tty", "sleep 100000")
	for name, c := range both(b) {
		queue := make(sizes, 1)
		queue <- remotecommand.TerminalSize{Width: 101, Height: 31}
		in, typed := io.Pipe()
		out := &said{}
		done := make(chan error, 1)
		go func() {
			code, err := c.Exec(b.Ctx(), pod.Container, sessions.Streams{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: queue},
				"/bin/sh", "-c", "while read word; do stty size; done; exit 7")
			if err == nil && code != 7 {
				err = fmt.Errorf("code %d", code)
			}
			done <- err
		}()
		expect := func(size string) {
			t.Helper()
			b.Await("the terminal to have "+size, func() bool {
				_, _ = io.WriteString(typed, "\n")
				return strings.Contains(out.String(), size)
			})
		}
		expect("31 101")
		queue <- remotecommand.TerminalSize{Width: 55, Height: 44}
		expect("44 55")
		close(queue)
		_, _ = io.WriteString(typed, "\x04")
		if err := <-done; err != nil {
			t.Errorf("%s: %v after %q", name, err, out.String())
		}
		typed.Close()
	}
	b.RemovePod(pod.Sandbox)
}

// said collects output, and is safe for concurrent use.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func streamURLIsGoodOnce(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("stream-once", "sleep 100000")
	for name, c := range both(b) {
		answer, err := b.Runtime.Exec(b.Ctx(), &runtimeapi.ExecRequest{ContainerId: pod.Container, Cmd: []string{"true"}, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		if code, err := c.Run(b.Ctx(), answer.Url, sessions.Streams{Stdout: io.Discard}); code != 0 || err != nil {
			t.Errorf("%s: code %d, %v", name, code, err)
		}
		if _, err := c.Run(b.Ctx(), answer.Url, sessions.Streams{Stdout: io.Discard}); err == nil || !strings.Contains(err.Error(), "404") && !strings.Contains(err.Error(), "not found") {
			t.Errorf("%s, a second time: %v", name, err)
		}
	}
	b.RemovePod(pod.Sandbox)
}

// streamAttachFansOut: several clients receive the same output. A client that reads nothing gets an
// error and is dropped. Neither the container nor the other clients wait for it.
func streamAttachFansOut(t *testing.T, b *harness.Berth) {
	// The output exceeds what a client may fall behind (8) and what the kernel buffers of its
	// connection hold (10). The test writes it in steps, each after all other clients have received
	// the one before.
	const megabytes, step = 30, 3
	pod := b.RunPod("stream-fan", fmt.Sprintf(
		"i=0; while [ $i -lt %d ]; do until [ $(cat /tmp/go 2>/dev/null || echo 0) -gt $i ]; do sleep 0.05; done; head -c 1000000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; echo last; exec sleep 100000", megabytes))
	var listeners []*counter
	group, ctx := errgroup.WithContext(b.Ctx())
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	for _, c := range both(b) {
		for range 2 {
			l := &counter{word: "last"}
			listeners = append(listeners, l)
			group.Go(func() error { return ignoreCanceled(c.Attach(ctx, pod.Container, sessions.Streams{Stdout: l})) })
		}
	}
	stuck := &blocked{began: make(chan struct{}), free: make(chan struct{})}
	dropped := make(chan error, 1)
	patience, enough := context.WithTimeout(b.Ctx(), require.Patience(time.Minute))
	defer enough()
	go func() {
		dropped <- (&sessions.Client{Berth: b}).Attach(patience, pod.Container, sessions.Streams{Stdout: stuck})
	}()
	b.Await("clients", func() bool {
		b.Exec(pod.Container, "echo hello > /proc/1/fd/1")
		for _, l := range listeners {
			if l.count() == 0 {
				return false
			}
		}
		select {
		case <-stuck.began:
			return true
		default:
			return false
		}
	})
	began := time.Now()
	for upTo := step; upTo <= megabytes; upTo += step {
		b.Exec(pod.Container, fmt.Sprintf("echo %d > /tmp/next && mv /tmp/next /tmp/go", upTo))
		for i, l := range listeners {
			b.Await(fmt.Sprintf("%d MB at client %d", upTo, i), func() bool { return l.count() >= upTo*1_000_001 })
		}
	}
	for _, l := range listeners {
		b.Await("the end of the output", func() bool { return l.heard() })
	}
	t.Logf("%d MB reached %d clients in %v", megabytes, len(listeners), time.Since(began))
	close(stuck.free)
	if err := <-dropped; err == nil || !strings.Contains(err.Error(), "behind the container and was dropped") {
		t.Errorf("the slow client got %v", err)
	}
	leave()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	b.RemovePod(pod.Sandbox)
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// counter counts the bytes written to it, and notes a word.
type counter struct {
	word string
	mu   sync.Mutex
	n    int
	has  bool
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += len(p)
	c.has = c.has || bytes.Contains(p, []byte(c.word))
	return len(p), nil
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *counter) heard() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.has
}

// blocked accepts nothing until it is released.
type blocked struct {
	once        sync.Once
	began, free chan struct{}
}

func (w *blocked) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.began) })
	<-w.free
	return len(p), nil
}

func streamStdinOnce(t *testing.T, b *harness.Berth) {
	sandbox := b.Sandbox("stream-stdin")
	pod := b.RunSandbox(sandbox)
	for name, c := range both(b) {
		config := b.Container(name, "cat; echo over; exit 4")
		config.Stdin, config.StdinOnce = true, true
		container := b.Create(pod, config, sandbox)
		b.StartContainer(container)
		var out bytes.Buffer
		err := c.Attach(b.Ctx(), container, sessions.Streams{Stdin: strings.NewReader("one\ntwo\n"), Stdout: &out})
		if err != nil || out.String() != "one\ntwo\nover\n" {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
		if got := b.AwaitExit(container).ExitCode; got != 4 {
			t.Errorf("%s: code %d", name, got)
		}
	}
	b.RemovePod(pod)
}

// streamNoStdin: a container without stdin gets nothing of what a client types. The client sees the output. (A terminal that
// got it would echo it.)
func streamNoStdin(t *testing.T, b *harness.Berth) {
	sandbox := b.Sandbox("stream-no-stdin")
	pod := b.RunSandbox(sandbox)
	for name, tty := range map[string]bool{"pipes": false, "terminal": true} {
		config := b.Container(name, "while :; do echo tick; sleep 0.05; done")
		config.Tty = tty
		container := b.Create(pod, config, sandbox)
		b.StartContainer(container)
		ctx, leave := context.WithCancel(b.Ctx())
		in, words := io.Pipe()
		out := &said{}
		done := make(chan error, 1)
		go func() {
			done <- (&sessions.Client{Berth: b}).Attach(ctx, container, sessions.Streams{Stdin: in, Stdout: out, Tty: tty})
		}()
		fmt.Fprintln(words, "typed")
		heard := strings.Count(out.String(), "tick")
		b.Await("the output", func() bool { return strings.Count(out.String(), "tick") > heard+3 })
		if strings.Contains(out.String(), "typed") {
			t.Errorf("%s: the container got the input: %q", name, out.String())
		}
		leave()
		words.Close()
		if err := ignoreCanceled(<-done); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.RemovePod(pod)
}

func streamAttachOverDeath(t *testing.T, b *harness.Berth) {
	sandbox := b.Sandbox("stream-death")
	pod := b.RunSandbox(sandbox)
	config := b.Container("c", "while read word; do echo heard $word; done; exit 4")
	config.Stdin, config.StdinOnce = true, true
	container := b.Create(pod, config, sandbox)
	b.StartContainer(container)
	in, words := io.Pipe()
	out := &said{}
	done := make(chan error, 1)
	go func() {
		done <- (&sessions.Client{Berth: b}).Attach(b.Ctx(), container, sessions.Streams{Stdin: in, Stdout: out})
	}()
	for i := range 3 {
		if i > 0 && b.Has(harness.Supervisors) {
			killSupervisor(b)
		}
		word := fmt.Sprint("word-", i)
		fmt.Fprintln(words, word)
		asked := time.Now()
		b.Await("the answer", func() bool {
			if time.Since(asked) > 3*time.Second { // the line went to the log only, at the moment of the kill
				fmt.Fprintln(words, word)
				asked = time.Now()
			}
			return strings.Contains(out.String(), "heard "+word)
		})
	}
	words.Close()
	if err := <-done; err != nil {
		t.Errorf("the attachment ended with %v", err)
	}
	if got := b.AwaitExit(container).ExitCode; got != 4 {
		t.Errorf("code %d", got)
	}
	b.RemovePod(pod)
}

func killSupervisor(b *harness.Berth) {
	b.T.Helper()
	pid := b.SupervisorPid()
	harness.Kill(b.T, pid)
	b.Await("another supervisor", func() bool { now := b.SupervisorPid(); return now != 0 && now != pid })
}

func streamAttachRefused(t *testing.T, b *harness.Berth) {
	sandbox := b.Sandbox("stream-refused")
	pod := b.RunSandbox(sandbox)
	created := b.Create(pod, b.Container("created", "exit 0"), sandbox)
	ended := b.Create(pod, b.Container("ended", "exit 0"), sandbox)
	b.StartContainer(ended)
	b.AwaitExit(ended)
	for name, id := range map[string]string{"created": created, "exited": ended} {
		err := (&sessions.Client{Berth: b}).Attach(b.Ctx(), id, sessions.Streams{Stdout: io.Discard})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "not running") {
			t.Errorf("of a container that is %s: %v", name, err)
		}
	}
	b.RemovePod(pod)
}

// inPod runs a function that opens sockets in a sandbox's network namespace.
func inPod(b *harness.Berth, sandbox string, open func() error) {
	b.T.Helper()
	pins, err := filepath.Glob("/run/netns/berth-*-" + sandbox)
	if err != nil || len(pins) != 1 {
		b.T.Fatalf("the namespaces of sandbox %s: %v, %v", sandbox, pins, err)
	}
	if err := sysns.InNetNS(pins[0], open); err != nil {
		b.T.Fatal(err)
	}
}

// serveEcho answers every connection with its name and the connection's input, once it has read all
// of it.
func serveEcho(b *harness.Berth, sandbox, address, name string) {
	b.T.Helper()
	var l net.Listener
	inPod(b, sandbox, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	b.T.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				said, err := io.ReadAll(c)
				if err == nil {
					_, _ = io.WriteString(c, name+string(said)) // the client is gone
				}
			}()
		}
	}()
}

// streamForward: each pod has its own listener on the same port, on IPv4 or IPv6.
func streamForward(t *testing.T, b *harness.Berth) {
	const port = 8080
	wants := map[string]struct{ answer, fault string }{
		"v4": {"four hello", ""}, "v6": {"six hello", ""}, "v4-and-v6": {"first hello", ""},
		"nobody": {"", "refused"}, "udp": {"", "only TCP is forwarded"},
	}
	for kind, want := range wants {
		sandbox := b.RunSandbox(b.Sandbox("forward-" + kind))
		switch kind {
		case "v4":
			serveEcho(b, sandbox, "127.0.0.1:8080", "four ")
		case "v6":
			serveEcho(b, sandbox, "[::1]:8080", "six ")
		case "v4-and-v6":
			serveEcho(b, sandbox, "127.0.0.1:8080", "first ")
			serveEcho(b, sandbox, "[::1]:8080", "second ")
		case "udp":
			var l net.PacketConn
			inPod(b, sandbox, func() (err error) {
				l, err = net.ListenPacket("udp", "127.0.0.1:8080")
				return err
			})
			defer l.Close()
		}
		for name, c := range both(b) {
			f, err := c.Forward(b.Ctx(), sandbox)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := f.Say(port, "hello")
			if answer != want.answer || (err == nil) != (want.fault == "") || err != nil && !strings.Contains(err.Error(), want.fault) {
				t.Errorf("%s by %s: %q, %v, want %+v", kind, name, answer, err, want)
			}
			f.Close()
		}
		b.RemovePod(sandbox)
	}
}

func streamForwardMany(t *testing.T, b *harness.Berth) {
	sandbox := b.RunSandbox(b.Sandbox("forward-many"))
	serveEcho(b, sandbox, "127.0.0.1:8080", "")
	for name, c := range both(b) {
		f, err := c.Forward(b.Ctx(), sandbox)
		if err != nil {
			t.Fatal(err)
		}
		group := new(errgroup.Group)
		for i := range 50 {
			group.Go(func() error {
				text := strings.Repeat(fmt.Sprintf("%d by %s ", i, name), 5000)
				answer, err := f.Say(8080, text)
				if err == nil && answer != text {
					err = fmt.Errorf("stream %d answered %d bytes of %d", i, len(answer), len(text))
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f.Close()
	}
	b.RemovePod(sandbox)
}

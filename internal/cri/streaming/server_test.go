package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// fake is a Runtime made of functions.
type fake struct {
	exec        func(ctx context.Context, spec *engine.ExecSpec) (int32, error)
	attach      func(ctx context.Context, spec *engine.AttachSpec) error
	portForward func(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error
}

func (f *fake) Exec(ctx context.Context, spec *engine.ExecSpec) (int32, error) {
	return f.exec(ctx, spec)
}

func (f *fake) Attach(ctx context.Context, spec *engine.AttachSpec) error { return f.attach(ctx, spec) }

func (f *fake) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	return f.portForward(ctx, id, port, stream)
}

// serve runs a server for the test's time.
func serve(t *testing.T, runtime Runtime) *Server {
	t.Helper()
	return serveWith(t, Options{Runtime: runtime})
}

// serveWith is serve for a server with more options.
func serveWith(t *testing.T, opts Options) *Server {
	t.Helper()
	opts.Log = slog.New(slog.DiscardHandler)
	s, err := Listen(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

// within fails the test if done does not close in time.
func within[T any](t *testing.T, what string, done <-chan T) T {
	t.Helper()
	select {
	case v := <-done:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not happen", what)
		panic("unreachable")
	}
}

// clients runs a test with each protocol that real clients use.
func clients(t *testing.T, run func(t *testing.T, dial func(url string) remotecommand.Executor)) {
	t.Helper()
	t.Run("spdy", func(t *testing.T) {
		run(t, func(raw string) remotecommand.Executor {
			u, err := url.Parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
			if err != nil {
				t.Fatal(err)
			}
			return e
		})
	})
	for _, version := range []string{"v4.channel.k8s.io", "v5.channel.k8s.io"} {
		t.Run("websocket "+version, func(t *testing.T) {
			run(t, func(raw string) remotecommand.Executor {
				e, err := remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, raw, version)
				if err != nil {
					t.Fatal(err)
				}
				return e
			})
		})
	}
}

func execURL(t *testing.T, s *Server, req *runtimeapi.ExecRequest) string {
	t.Helper()
	req.ContainerId = "c1"
	if req.Cmd == nil {
		req.Cmd = []string{"run"}
	}
	u, err := s.ExecURL(req)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestExecReportsExitCodes(t *testing.T) {
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		for _, code := range []int32{0, 1, 7, 137, 255} {
			s := serve(t, &fake{exec: func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
				fmt.Fprintf(spec.Stdout, "out of %s", strings.Join(spec.Command, " "))
				fmt.Fprint(spec.Stderr, "complaint")
				return code, nil
			}})
			var out, errOut bytes.Buffer
			err := dial(execURL(t, s, &runtimeapi.ExecRequest{Cmd: []string{"a", "b"}, Stdout: true, Stderr: true})).
				StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
			var status exec.CodeExitError
			switch {
			case code == 0 && err != nil:
				t.Errorf("exit 0 gave %v", err)
			case code != 0 && (!errors.As(err, &status) || status.Code != int(code)):
				t.Errorf("exit %d gave %v", code, err)
			}
			if out.String() != "out of a b" || errOut.String() != "complaint" {
				t.Errorf("got %q and %q", out.String(), errOut.String())
			}
		}
	})
}

func TestExecReportsErrors(t *testing.T) {
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		s := serve(t, &fake{exec: func(context.Context, *engine.ExecSpec) (int32, error) {
			return 0, fmt.Errorf("container c1 has ended: %w", errs.State)
		}})
		err := dial(execURL(t, s, &runtimeapi.ExecRequest{Stdout: true})).
			StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if err == nil || !strings.HasSuffix(err.Error(), "container c1 has ended") {
			t.Errorf("got %v", err) // the name of the kind is not for people
		}
	})
}

// A client that ends its input must still get the answer. (WebSocket has no way
// to end stdin before protocol v5.)
func TestExecHalfClose(t *testing.T) {
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		if strings.HasSuffix(t.Name(), "v4.channel.k8s.io") {
			return
		}
		s := serve(t, &fake{exec: func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
			all, err := io.ReadAll(spec.Stdin)
			if err != nil {
				return 0, err
			}
			fmt.Fprintf(spec.Stdout, "%d bytes", len(all))
			return 3, nil
		}})
		var out bytes.Buffer
		err := dial(execURL(t, s, &runtimeapi.ExecRequest{Stdin: true, Stdout: true})).
			StreamWithContext(t.Context(), remotecommand.StreamOptions{
				Stdin: bytes.NewReader(make([]byte, 1<<20)), Stdout: &out,
			})
		var status exec.CodeExitError
		if !errors.As(err, &status) || status.Code != 3 || out.String() != "1048576 bytes" {
			t.Errorf("got %v and %q", err, out.String())
		}
	})
}

func TestExecBigOutput(t *testing.T) {
	const size = 32 << 20
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		s := serve(t, &fake{exec: func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
			chunk := bytes.Repeat([]byte("0123456789abcde\n"), 2048)
			for range size / len(chunk) {
				if _, err := spec.Stdout.Write(chunk); err != nil {
					return 0, err
				}
			}
			return 9, nil
		}})
		var got countingWriter
		err := dial(execURL(t, s, &runtimeapi.ExecRequest{Stdout: true})).
			StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &got})
		var status exec.CodeExitError
		if !errors.As(err, &status) || status.Code != 9 || got != size {
			t.Errorf("got %v and %d bytes", err, got)
		}
	})
}

type countingWriter int64

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}

// sizeQueue returns its sizes and then blocks, as a terminal does.
type sizeQueue struct {
	sizes chan remotecommand.TerminalSize
}

func (q *sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q.sizes
	if !ok {
		return nil
	}
	return &size
}

func TestExecTerminal(t *testing.T) {
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		sizes := make(chan engine.TerminalSize, 4)
		s := serve(t, &fake{exec: func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
			if !spec.TTY || spec.Stderr != nil {
				return 0, fmt.Errorf("tty %v, stderr %v", spec.TTY, spec.Stderr)
			}
			sizes <- <-spec.Resize
			line := make([]byte, 5)
			if _, err := io.ReadFull(spec.Stdin, line); err != nil {
				return 0, err
			}
			sizes <- <-spec.Resize
			_, err := spec.Stdout.Write(line)
			return 0, err
		}})
		queue := &sizeQueue{sizes: make(chan remotecommand.TerminalSize)}
		in, typed := io.Pipe()
		defer typed.Close()
		var out bytes.Buffer
		done := make(chan error, 1)
		e := dial(execURL(t, s, &runtimeapi.ExecRequest{Stdin: true, Stdout: true, Tty: true}))
		go func() {
			done <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{
				Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: queue,
			})
		}()
		queue.sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
		if got := within(t, "the first size", sizes); got != (engine.TerminalSize{Width: 80, Height: 24}) {
			t.Errorf("first size is %v", got)
		}
		if _, err := typed.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		queue.sizes <- remotecommand.TerminalSize{Width: 132, Height: 50}
		if got := within(t, "the second size", sizes); got != (engine.TerminalSize{Width: 132, Height: 50}) {
			t.Errorf("second size is %v", got)
		}
		close(queue.sizes)
		if err := within(t, "the end", done); err != nil || out.String() != "hello" {
			t.Errorf("got %v and %q", err, out.String())
		}
	})
}

// If a client disconnects, the session's context ends, whether or not the session has read the
// client's data.
func TestClientGone(t *testing.T) {
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		for _, verb := range []string{"exec", "attach"} {
			for _, input := range []string{"none", "unread"} {
				t.Run(verb+" input "+input, func(t *testing.T) {
					began, ended := make(chan struct{}), make(chan error, 1)
					wait := func(ctx context.Context) error {
						close(began)
						<-ctx.Done()
						ended <- context.Cause(ctx)
						return ctx.Err()
					}
					s := serve(t, &fake{
						exec:   func(ctx context.Context, _ *engine.ExecSpec) (int32, error) { return 0, wait(ctx) },
						attach: func(ctx context.Context, _ *engine.AttachSpec) error { return wait(ctx) },
					})
					opts := remotecommand.StreamOptions{Stdout: io.Discard}
					if input == "unread" {
						in, typed := io.Pipe()
						defer typed.Close()
						go typed.Write(make([]byte, 64<<10))
						opts.Stdin = in
					}
					var u string
					var err error
					if verb == "exec" {
						u = execURL(t, s, &runtimeapi.ExecRequest{Stdin: opts.Stdin != nil, Stdout: true})
					} else {
						u, err = s.AttachURL(&runtimeapi.AttachRequest{ContainerId: "c1", Stdin: opts.Stdin != nil, Stdout: true})
					}
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					e := dial(u)
					go func() { done <- e.StreamWithContext(ctx, opts) }()
					within(t, "the session", began)
					cancel()
					within(t, "the end of the session", ended)
					within(t, "the end of the client", done)
				})
			}
		}
	})
}

func TestCloseEndsSessions(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	s := serve(t, &fake{exec: func(ctx context.Context, _ *engine.ExecSpec) (int32, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	}})
	u, err := url.Parse(execURL(t, s, &runtimeapi.ExecRequest{Stdout: true}))
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
	}()
	within(t, "the session", began)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "the end of the session", ended)
	within(t, "the end of the client", done)
}

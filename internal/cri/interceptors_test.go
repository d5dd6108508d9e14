package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/scrub"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

func TestEveryKindHasACodeOfItsOwn(t *testing.T) {
	i := interceptors{scrub: scrub.New()}
	seen := map[codes.Code]error{}
	for _, kind := range errs.Kinds() {
		code := status.Code(i.toStatus(fmt.Errorf("cannot do it: %w", kind)))
		if code == codes.Internal || code == codes.Unknown {
			t.Errorf("kind %q has no code", kind)
		}
		if other, taken := seen[code]; taken {
			t.Errorf("kinds %q and %q share code %s", kind, other, code)
		}
		seen[code] = kind
	}
}

func TestErrorsWithoutAKind(t *testing.T) {
	i := interceptors{scrub: scrub.New()}
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"none":      {nil, codes.OK},
		"fault":     {errors.New("disk on fire"), codes.Internal},
		"job":       {errs.Guard("run sandbox web", func() error { panic("oh no") }), codes.Internal},
		"deadline":  {fmt.Errorf("waiting: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		"cancelled": {fmt.Errorf("waiting: %w", context.Canceled), codes.Canceled},
		"full disk": {&fs.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}, codes.ResourceExhausted},
		"status":    {status.Error(codes.Unimplemented, "no"), codes.Unimplemented},
	} {
		if got := status.Code(i.toStatus(c.err)); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// TestKindsAreNotLogged: the line of a request has the kind of an error as its code, and not as a word at the end of its text.
func TestKindsAreNotLogged(t *testing.T) {
	var log bytes.Buffer
	conn := client(t, &fakePods{stop: func(context.Context, string) error {
		return fmt.Errorf("the engine does not answer now: %w", errs.Unavailable)
	}}, noImages(), slog.New(slog.NewTextHandler(&log, nil)))
	_, err := runtimeapi.NewRuntimeServiceClient(conn).StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "x"})
	if text := log.String(); status.Code(err) != codes.Unavailable || !strings.Contains(text, " code=Unavailable error=") ||
		!strings.HasSuffix(text, "the engine does not answer now\"\n") {
		t.Errorf("%v; logged: %s", err, text)
	}
}

func TestCredentialsAreNotReturned(t *testing.T) {
	i := interceptors{scrub: scrub.New()}
	for _, err := range []error{
		fmt.Errorf("cannot pull https://joe:hunter2@reg/v2: %w", errs.Unavailable),
		errors.New("cannot pull https://joe:hunter2@reg/v2"),
		status.Error(codes.Aborted, "cannot pull https://joe:hunter2@reg/v2"),
	} {
		if got := i.toStatus(err).Error(); strings.Contains(got, "hunter2") || !strings.Contains(got, "reg/v2") {
			t.Errorf("crossed as %q", got)
		}
	}
}

func TestLongTextsAreShortenedInTheMiddle(t *testing.T) {
	i := interceptors{scrub: scrub.New()}
	got := status.Convert(i.toStatus(fmt.Errorf("cannot use %q: %w", strings.Repeat("\u00e4", 1<<20), errs.Invalid))).Message()
	if len(got) > maxMessage || !strings.HasPrefix(got, "cannot use") || !strings.HasSuffix(got, errs.Invalid.Error()) || !strings.Contains(got, "bytes more") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// The log contains no more of a value than a response would.
func TestLongValuesAreLoggedInPart(t *testing.T) {
	i := interceptors{scrub: scrub.New()}
	huge := strings.Repeat("x", 1<<20)
	for _, msg := range []any{
		&runtimeapi.StopContainerRequest{ContainerId: huge},
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: huge}},
	} {
		attrs := i.identify(msg)
		if len(attrs) != 1 || len(attrs[0].Value.String()) > maxMessage {
			t.Errorf("%T: %d attributes, %d bytes", msg, len(attrs), len(attrs[0].Value.String()))
		}
	}
}

func TestPanicBecomesInternalAndIsLogged(t *testing.T) {
	var log bytes.Buffer
	conn := client(t, &fakePods{stop: func(context.Context, string) error { panic("oh no") }}, noImages(), slog.New(slog.NewTextHandler(&log, nil)))
	_, err := runtimeapi.NewRuntimeServiceClient(conn).StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "x"})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "oh no") {
		t.Errorf("got %v", err)
	}
	if text := log.String(); !strings.Contains(text, "oh no") || !strings.Contains(text, "interceptors_test.go") {
		t.Errorf("the log lacks the panic or its stack: %s", text)
	}
}

// noted is an observer that notes what it sees.
type noted struct{ seen []string }

func (n *noted) RequestBegan(method string) { n.seen = append(n.seen, method+" began") }

func (n *noted) RequestEnded(method, code string, _ time.Duration) {
	n.seen = append(n.seen, method+" "+code)
}

// withContext is a stream that has a context and no more.
type withContext struct {
	grpc.ServerStream
	t *testing.T
}

func (w withContext) Context() context.Context { return w.t.Context() }

// TestRequestsAreObserved: the observer sees each request with the code that its client gets, also that of a panic.
func TestRequestsAreObserved(t *testing.T) {
	seen := &noted{}
	i := interceptors{log: slog.New(slog.DiscardHandler), scrub: scrub.New(), observer: seen}
	for _, handler := range []grpc.UnaryHandler{
		func(context.Context, any) (any, error) { return nil, nil },
		func(context.Context, any) (any, error) { return nil, fmt.Errorf("no registry: %w", errs.Unavailable) },
		func(context.Context, any) (any, error) { panic("oh no") },
	} {
		_, _ = i.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, handler)
	}
	err := i.stream(nil, withContext{t: t}, &grpc.StreamServerInfo{FullMethod: "/s/stream"}, func(any, grpc.ServerStream) error { return errs.Exhausted })
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	want := []string{"/s/m began", "/s/m OK", "/s/m began", "/s/m Unavailable", "/s/m began", "/s/m Internal", "/s/stream began", "/s/stream ResourceExhausted"}
	if diff := cmp.Diff(want, seen.seen); diff != "" {
		t.Error(diff)
	}
}

func TestRequestsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	pods := &fakePods{
		run: func(context.Context, *runtimeapi.PodSandboxConfig, string) (string, error) { return "abc", nil },
		stop: func(context.Context, string) error {
			return fmt.Errorf("cannot stop: %w", errs.Unavailable)
		},
		info: &engine.Info{},
	}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), slog.New(slog.NewTextHandler(&log, nil))))
	ctx := t.Context()
	if _, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandboxRequest()}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "abc"}); err == nil {
		t.Fatal("stop succeeded")
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("want a line for run and one for stop, and none for a successful Version:\n%s", log.String())
	}
	for i, wants := range [][]string{
		{"level=INFO", "method=RunPodSandbox", "sandbox=abc", "pod=ns/web", "took="},
		{"level=WARN", "method=StopPodSandbox", "sandbox=abc", "code=Unavailable", "cannot stop"},
	} {
		for _, want := range wants {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%q lacks %q", lines[i], want)
			}
		}
	}
}

// A call that waits for a job has its caller's deadline. Its error names the current stage.
func TestDeadlineErrorHasTheStage(t *testing.T) {
	pods := &fakePods{run: func(ctx context.Context, _ *runtimeapi.PodSandboxConfig, _ string) (string, error) {
		if _, ok := ctx.Deadline(); !ok {
			return "", errors.New("the caller's deadline did not arrive")
		}
		return "", fmt.Errorf("sandbox is in stage network for 3s: %w", errs.Deadline)
	}}
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandboxRequest()})
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "stage network") {
		t.Errorf("got %v", err)
	}
}

package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/streaming"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// commands is a runtime that runs a function for each command.
type commands func(ctx context.Context, spec *engine.ExecSpec) (int32, error)

func (c commands) Exec(ctx context.Context, spec *engine.ExecSpec) (int32, error) {
	return c(ctx, spec)
}

func (commands) Attach(context.Context, *engine.AttachSpec) error { return errs.Unsupported }

func (commands) PortForward(context.Context, string, int32, io.ReadWriteCloser) error {
	return errs.Unsupported
}

// session returns the URL of a command.
func session(t *testing.T, run commands) *url.URL {
	t.Helper()
	s, err := streaming.Listen(t.Context(), streaming.Options{Runtime: run, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	raw, err := s.ExecURL(&runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"run"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestExitCodes(t *testing.T) {
	for _, want := range []int{0, 1, 137} {
		at := session(t, func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
			fmt.Fprint(spec.Stdout, "said")
			return int32(want), nil
		})
		var out bytes.Buffer
		if code, err := Run(t.Context(), at.String(), Streams{Out: &out}); code != want || err != nil || out.String() != "said" {
			t.Errorf("%d became %d, %v, with %q", want, code, err, out.String())
		}
	}
}

// TestBrokenConnection: if the runtime dies during a command, the command has not succeeded.
func TestBrokenConnection(t *testing.T) {
	at := session(t, func(ctx context.Context, spec *engine.ExecSpec) (int32, error) {
		fmt.Fprint(spec.Stdout, "begun")
		<-ctx.Done()
		return 0, ctx.Err()
	})
	server := at.Host
	proxy, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	at.Host = proxy.Addr().String()
	begun := make(chan struct{})
	go func() {
		client, err := proxy.Accept()
		if err != nil {
			return
		}
		behind, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server)
		if err != nil {
			client.Close()
			return
		}
		go func() { _, _ = io.Copy(behind, client) }()
		go func() { _, _ = io.Copy(client, behind) }()
		<-begun
		client.Close()
		behind.Close()
	}()
	code, err := Run(t.Context(), at.String(), Streams{Out: writer(func() { close(begun) })})
	if !errors.Is(err, errs.Unavailable) {
		t.Errorf("it ended with %d, %v", code, err)
	}
}

// writer is called for each write.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// idle is shorter than the pause between two pings of a client.
const idle = time.Second

// The server closes an idle connection, and its session ends. A connection with traffic stays.
func TestIdleSessionsEnd(t *testing.T) {
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		ended := make(chan time.Duration, 1)
		s := serveWith(t, Options{IdleTimeout: idle, Runtime: &fake{exec: func(ctx context.Context, spec *engine.ExecSpec) (int32, error) {
			for range 8 {
				if _, err := io.WriteString(spec.Stdout, "."); err != nil {
					return 0, fmt.Errorf("busy, and cut off: %w", err)
				}
				time.Sleep(idle / 4) // how often a busy command writes
			}
			began := time.Now()
			<-ctx.Done()
			ended <- time.Since(began)
			return 0, ctx.Err()
		}}})
		var out strings.Builder
		err := dial(execURL(t, s, &runtimeapi.ExecRequest{Stdout: true})).
			StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
		if after := within(t, "the end of the session", ended); after < idle/4 || after > 10*idle {
			t.Errorf("it ended after %v", after)
		}
		if out.String() != "........" {
			t.Errorf("the client got %q, %v", out.String(), err)
		}
	})
}

// TestClientThatReadsNothingIsDisconnected: it has fallen behind, and its session has ended. The write that waits for the
// client ends with the connection, and the session's goroutines with it.
func TestClientThatReadsNothingIsDisconnected(t *testing.T) {
	freed := make(chan error, 1)
	s := serveWith(t, Options{IdleTimeout: idle, Runtime: &fake{attach: func(_ context.Context, spec *engine.AttachSpec) error {
		var written atomic.Int64
		go func() {
			for chunk := make([]byte, 32<<10); ; {
				n, err := spec.Stdout.Write(chunk)
				written.Add(int64(n))
				if err != nil {
					freed <- err
					return
				}
			}
		}()
		for before := int64(0); before == 0 || before != written.Load(); time.Sleep(100 * time.Millisecond) {
			before = written.Load()
		}
		return fmt.Errorf("client fell behind the container and was dropped: %w", errs.Exhausted)
	}}})
	raw, err := s.AttachURL(&runtimeapi.AttachRequest{ContainerId: "c1", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	out, release := io.Pipe() // nobody reads it
	ended := make(chan error, 1)
	go func() {
		ended <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: release})
	}()
	within(t, "the end of the write", freed)
	out.Close()
	within(t, "the end of the client", ended)
}

func TestIdlePortForwardEnds(t *testing.T) {
	for name, dial := range map[string]dialer{"spdy": dialSPDY, "spdy in websocket": dialTunnel} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			s := serveWith(t, Options{IdleTimeout: time.Hour, Runtime: &fake{portForward: func(ctx context.Context, _ string, _ int32, _ io.ReadWriteCloser) error {
				<-ctx.Done()
				close(ended)
				return ctx.Err()
			}}})
			s.SetIdleTimeout(idle) // as a reload does
			raw, err := s.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("tcp", forward(t, dial, raw, []string{"0:80"})[0])
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			within(t, "the end of the session", ended)
		})
	}
}

// The server does not wait for a client that connects and sends nothing, or that upgrades and opens
// no stream.
func TestStalledClientsAreDisconnected(t *testing.T) {
	s := serveWith(t, Options{CreationTimeout: idle, Runtime: &fake{exec: func(context.Context, *engine.ExecSpec) (int32, error) {
		return 0, errors.New("nobody asked for it")
	}}})
	raw := execURL(t, s, &runtimeapi.ExecRequest{Stdout: true})
	path := strings.TrimPrefix(raw, "http://"+s.Address())
	for name, request := range map[string]string{
		"says nothing":                          "",
		"says half":                             "POST " + path + " HTTP/1.1\r\nHost",
		"asks for what is not there, and stays": "GET /exec/none HTTP/1.1\r\nHost: x\r\n\r\n",
		"opens no stream": "POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n" +
			"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n",
	} {
		c, err := net.Dial("tcp", s.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil {
			t.Errorf("a client that %s is not cut off: %v", name, err)
		}
		if upgraded := strings.Contains(string(answer), "101 Switching"); upgraded != (name == "opens no stream") {
			t.Errorf("a client that %s got %q", name, answer)
		}
	}
}

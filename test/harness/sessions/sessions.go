// Package sessions is the client's side of exec, attach and port-forward for tests, as kubectl has
// it, from within the network namespace that stands for the host.
package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/test/harness"
)

// Client opens sessions of one berth. It is safe for concurrent use.
type Client struct {
	Berth *harness.Berth
	// WebSocket selects the protocol; SPDY else.
	WebSocket bool
	// Config has what a client trusts when the server uses TLS.
	Config rest.Config
}

// Streams are the ends of a session.
type Streams = remotecommand.StreamOptions

// Exec runs a command in a container and returns its exit code.
func (c *Client) Exec(ctx context.Context, container string, streams Streams, cmd ...string) (code int, err error) {
	answer, err := c.Berth.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: container, Cmd: cmd, Tty: streams.Tty,
		Stdin: streams.Stdin != nil, Stdout: streams.Stdout != nil, Stderr: streams.Stderr != nil && !streams.Tty,
	})
	if err != nil {
		return 0, err
	}
	return c.Run(ctx, answer.Url, streams)
}

// Attach joins streams to a container until it exits, or ctx ends.
func (c *Client) Attach(ctx context.Context, container string, streams Streams) error {
	answer, err := c.Berth.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: container, Tty: streams.Tty,
		Stdin: streams.Stdin != nil, Stdout: streams.Stdout != nil, Stderr: streams.Stderr != nil && !streams.Tty,
	})
	if err != nil {
		return err
	}
	_, err = c.Run(ctx, answer.Url, streams)
	return err
}

// Run joins streams to a URL that Exec or Attach returned.
func (c *Client) Run(ctx context.Context, rawURL string, streams Streams) (code int, err error) {
	var session remotecommand.Executor
	if c.WebSocket {
		session, err = remotecommand.NewWebSocketExecutor(&c.Config, http.MethodGet, rawURL)
	} else {
		var u *url.URL
		if u, err = url.Parse(rawURL); err == nil {
			session, err = remotecommand.NewSPDYExecutor(&c.Config, http.MethodPost, u)
		}
	}
	if err != nil {
		return 0, err
	}
	// The error has what the library would write to the test's output.
	ctx = klog.NewContext(ctx, klog.Logger{})
	err = c.inHost(func() error { return session.StreamWithContext(ctx, streams) })
	var status exec.CodeExitError
	if errors.As(err, &status) {
		return status.Code, nil
	}
	return 0, err
}

// inHost runs a function that dials before it starts a goroutine.
func (c *Client) inHost(fn func() error) error {
	return sysns.InNetNS("/run/netns/"+c.Berth.NetNS, fn)
}

// Forwarding is one connection over which ports of a sandbox are reached.
type Forwarding struct {
	conn httpstream.Connection
	last atomic.Int64
}

// Forward opens a connection to a sandbox.
func (c *Client) Forward(ctx context.Context, sandbox string) (*Forwarding, error) {
	answer, err := c.Berth.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: sandbox})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(answer.Url)
	if err != nil {
		return nil, err
	}
	var dialer httpstream.Dialer
	if c.WebSocket {
		dialer, err = portforward.NewSPDYOverWebsocketDialerForStreaming(u, &c.Config)
	} else {
		var transport http.RoundTripper
		var upgrader spdy.Upgrader
		if transport, upgrader, err = spdy.RoundTripperFor(&c.Config); err == nil {
			dialer = spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
		}
	}
	if err != nil {
		return nil, err
	}
	f := &Forwarding{}
	err = c.inHost(func() (err error) {
		f.conn, _, err = dialer.Dial(portforward.PortForwardProtocolV1Name)
		return err
	})
	return f, err
}

// Say opens a stream to a port, writes text, closes its own direction, and returns the complete
// answer. The error is what the server reports for the stream. Several calls may run at once.
func (f *Forwarding) Say(port int, text string) (answer string, err error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(f.last.Add(1), 10))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	complaints, err := f.conn.CreateStream(headers)
	if err != nil {
		return "", err
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := f.conn.CreateStream(headers)
	if err != nil {
		return "", err
	}
	defer f.conn.RemoveStreams(complaints, data)
	serverErr := make(chan error, 1)
	go func() {
		text, err := io.ReadAll(complaints)
		if err == nil && len(text) > 0 {
			err = errors.New(string(text))
		}
		serverErr <- err
	}()
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(data, text)
		wrote <- errors.Join(err, complaints.Close(), data.Close())
	}()
	all, readErr := io.ReadAll(data)
	if err := <-serverErr; err != nil {
		return string(all), err
	}
	if err := errors.Join(<-wrote, readErr); err != nil {
		return string(all), fmt.Errorf("stream to port %d: %w", port, err)
	}
	return string(all), nil
}

// Close ends the connection and its streams.
func (f *Forwarding) Close() error { return f.conn.Close() }

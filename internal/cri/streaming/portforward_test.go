package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
)

func TestPortForward(t *testing.T) {
	t.Run("spdy", func(t *testing.T) { testPortForward(t, dialSPDY) })
	t.Run("spdy in websocket", func(t *testing.T) { testPortForward(t, dialTunnel) })
}

func testPortForward(t *testing.T, dial dialer) {
	var mu sync.Mutex
	var ports []int32
	s := serve(t, &fake{portForward: func(_ context.Context, id string, port int32, stream io.ReadWriteCloser) error {
		mu.Lock()
		ports = append(ports, port)
		mu.Unlock()
		if port == 9 {
			return errors.New("nobody listens on 127.0.0.1:9")
		}
		all, err := io.ReadAll(stream)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stream, "%s heard %s", id, all)
		return err
	}})
	raw, err := s.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	local := forward(t, dial, raw, []string{"0:80", "0:9"})

	answer, err := say(local[0], "one")
	if err != nil || answer != "p1 heard one" {
		t.Errorf("got %q, %v", answer, err)
	}
	answer, err = say(local[0], "two")
	if err != nil || answer != "p1 heard two" {
		t.Errorf("got %q, %v", answer, err)
	}
	if answer, err = say(local[1], "three"); answer != "" {
		t.Errorf("a dead port answered %q, %v", answer, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(ports) != "[80 80 9]" {
		t.Errorf("forwarded %v", ports)
	}
}

// The context of a forwarded connection ends when the client disconnects, although the library
// passes a context that does not.
func TestPortForwardClientGone(t *testing.T) {
	t.Run("spdy", func(t *testing.T) { testPortForwardClientGone(t, dialSPDY) })
	t.Run("spdy in websocket", func(t *testing.T) { testPortForwardClientGone(t, dialTunnel) })
}

func testPortForwardClientGone(t *testing.T, dial dialer) {
	began, ended := make(chan struct{}), make(chan struct{})
	s := serve(t, &fake{portForward: func(ctx context.Context, _ string, _ int32, _ io.ReadWriteCloser) error {
		close(began)
		<-ctx.Done()
		close(ended)
		return nil
	}})
	raw, err := s.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("client", func(t *testing.T) {
		local := forward(t, dial, raw, []string{"0:80"})
		c, err := net.Dial("tcp", local[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		within(t, "the connection", began)
	})
	within(t, "the end of the connection", ended)
}

type dialer func(t *testing.T, u *url.URL) httpstream.Dialer

func dialSPDY(t *testing.T, u *url.URL) httpstream.Dialer {
	t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
}

func dialTunnel(t *testing.T, u *url.URL) httpstream.Dialer {
	t.Helper()
	d, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// forward runs a client for the test's time and returns its local addresses.
func forward(t *testing.T, dial dialer, raw string, ports []string) []string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddressesForStreaming(dial(t, u), []string{"127.0.0.1"}, ports, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	t.Cleanup(func() {
		close(stop)
		within(t, "the end of the forwarder", done)
	})
	within(t, "forwarding", ready)
	got, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for _, p := range got {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", p.Local))
	}
	return addrs
}

// WebSocket clients name their ports when they request the URL. Data and errors of each port have a
// channel, which begins with the port's number.
func TestPortForwardOverWebSocket(t *testing.T) {
	s := serve(t, &fake{portForward: func(_ context.Context, _ string, _ int32, stream io.ReadWriteCloser) error {
		word := make([]byte, 4)
		if _, err := io.ReadFull(stream, word); err != nil {
			return err
		}
		_, err := stream.Write(bytes.ToUpper(word))
		return err
	}})
	raw, err := s.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: "p1", Port: []int32{0x1234}})
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{Subprotocols: []string{"v4.channel.k8s.io"}}
	c, resp, err := dialer.DialContext(t.Context(), strings.Replace(raw, "http:", "ws:", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer c.Close()
	if err := c.WriteMessage(websocket.BinaryMessage, []byte("\x00ping")); err != nil {
		t.Fatal(err)
	}
	heard := map[byte]string{}
	for heard[0] != "\x34\x12PING" {
		_, msg, err := c.ReadMessage()
		if err != nil {
			t.Fatalf("after %q: %v", heard, err)
		}
		heard[msg[0]] += string(msg[1:])
	}
}

// say sends a line's worth, half-closes, and returns the whole answer.
func say(addr, text string) (string, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	all, err := io.ReadAll(c)
	return string(all), err
}

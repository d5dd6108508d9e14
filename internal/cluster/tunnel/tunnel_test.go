package tunnel

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/require"
)

// host is a provider whose containers are this host.
type host struct {
	provider.Provider
	ended chan error
}

func (h host) Exec(ctx context.Context, _ string, c provider.Command) error {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	var said strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, &said
	err := cmd.Run()
	if err != nil {
		err = errors.New(said.String())
	}
	h.ended <- err
	return err
}

func (h host) await(t *testing.T) {
	t.Helper()
	select {
	case <-h.ended:
	case <-time.After(time.Minute):
		t.Fatal("the program in the container runs on")
	}
}

// TestDial: a connection serves requests. Its program ends when either side closes it.
func TestDial(t *testing.T) {
	require.Binary(t, "bash")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	t.Cleanup(server.Close)
	port := int(netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://")).Port())
	h := host{ended: make(chan error, 1)}
	// The context of a dial ends before its connection does.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, closes := range []string{"client", "server"} {
		conn, err := Dial(ctx, h, "node", port)
		if err != nil {
			t.Fatal(err)
		}
		if closes == "client" {
			cancel()
		}
		header := map[string]string{"client": "keep-alive", "server": "close"}[closes]
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: "+header+"\r\nContent-Length: 4\r\n\r\necho"); err != nil {
			t.Fatal(err)
		}
		text := ""
		for b := make([]byte, 1024); !strings.HasSuffix(text, "echo"); {
			n, err := conn.Read(b)
			if err != nil {
				t.Fatalf("%v after %q", err, text)
			}
			text += string(b[:n])
		}
		if closes == "server" {
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v", err)
			}
			h.await(t)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if closes == "client" {
			h.await(t)
		}
	}
}

// TestClosedPort: the error of the program in the container is that of the connection. A deadline ends a Read.
func TestClosedPort(t *testing.T) {
	require.Binary(t, "bash")
	h := host{ended: make(chan error, 1)}
	conn, err := Dial(t.Context(), h, "node", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "onnection refused") {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	silent := httptest.NewServer(nil)
	t.Cleanup(silent.Close)
	<-h.ended
	if conn, err = Dial(t.Context(), h, "node", int(netip.MustParseAddrPort(strings.TrimPrefix(silent.URL, "http://")).Port())); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Error(err)
	}
	var timeout interface{ Timeout() bool }
	if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Error(err)
	}
	conn.Close()
	h.await(t)
}

//go:build integration

package innode

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// alone reports whether a test runs in a network namespace of its own.
const alone = "BERTH_TEST_ALONE"

// plane is a control plane that answers with its name.
func plane(t *testing.T, name, address string) (ready *atomic.Bool) {
	t.Helper()
	ready = &atomic.Bool{}
	ready.Store(true)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && !ready.Load() {
			http.Error(w, "etcd has failed", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, name)
	}))
	// haproxy listens on this port on every address. The control planes listen on it too, each on
	// its own address.
	shared := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var set error
		err := conn.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(err, set)
	}}
	listener, err := shared.Listen(t.Context(), "tcp", address+":6443")
	if err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(server.Close)
	return ready
}

// client is one connection to the API.
type client struct {
	conn net.Conn
	read *bufio.Reader
}

func dial(t *testing.T) (*client, error) {
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := d.DialContext(t.Context(), "tcp", "[::1]:6443")
	if err != nil {
		return nil, err
	}
	return &client{conn, bufio.NewReader(conn)}, nil
}

// ask returns the name of the control plane that answers.
func (c *client) ask() (string, error) {
	if _, err := io.WriteString(c.conn, "GET / HTTP/1.1\r\nHost: api\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(c.read, nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	name, err := io.ReadAll(answer.Body)
	return string(name), err
}

// TestBalancing: Debian's haproxy accepts the configuration. It uses the next control plane without
// dropping a connection, and closes connections to one that is no longer ready.
func TestBalancing(t *testing.T) {
	require.Root(t)
	require.Binary(t, "haproxy")
	if os.Getenv(alone) == "" {
		unshare := require.Binary(t, "unshare")
		cmd := exec.CommandContext(t.Context(), unshare, "--net", "sh", "-c", `ip link set lo up && exec "$@"`, "sh", os.Args[0], "-test.run=^TestBalancing$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ready := plane(t, "a", "127.0.0.2")
	plane(t, "b", "127.0.0.3")
	n := node{t.TempDir()}
	for name, text := range map[string]string{"run/about": "", BalancerFile: `{"ipv6":true}`} {
		if err := n.write(name, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.writeLastConfig(); err != nil {
		t.Fatal(err)
	}
	args := n.haproxy()
	haproxy := exec.CommandContext(t.Context(), args[0], args[1:]...)
	haproxy.Cancel = func() error { return haproxy.Process.Signal(syscall.SIGTERM) }
	var log strings.Builder
	haproxy.Stdout, haproxy.Stderr = &log, &log
	if err := haproxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = haproxy.Wait() // it was stopped
		if t.Failed() {
			t.Log(log.String())
		}
	})
	const both, one = `{"ipv6":true,"servers":[{"name":"a","host":"127.0.0.2"},{"name":"b","host":"127.0.0.3"}]}`, `{"ipv6":true,"servers":[{"name":"b","host":"127.0.0.3"}]}`
	tell := func(what string) {
		t.Helper()
		if err := n.rebalance(t.Context(), strings.NewReader(what)); err != nil {
			t.Fatal(err)
		}
	}
	tell(both)
	open := map[string]*client{}
	for try := 0; try < 20 && len(open) < 2; try++ {
		c, err := dial(t)
		if err != nil {
			t.Fatal(err)
		}
		name, err := c.ask()
		if err != nil {
			t.Fatal(err)
		}
		open[name] = c
	}
	if len(open) < 2 {
		t.Fatalf("only %v answer", open)
	}

	// A client sends requests all the time while the configuration changes.
	var stop atomic.Bool
	asked, done := 0, make(chan error, 1)
	go func() {
		for ; !stop.Load(); asked++ {
			c, err := dial(t)
			if err == nil {
				_, err = c.ask()
				c.conn.Close()
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for _, what := range []string{one, both, one} {
		tell(what)
	}
	stop.Store(true)
	if err := <-done; err != nil || asked == 0 {
		t.Errorf("%d connections, and then %v", asked, err)
	}
	for name, c := range open {
		if got, err := c.ask(); err != nil || got != name {
			t.Errorf("the connection to %s is with %q, %v", name, got, err)
		}
	}
	if c, err := dial(t); err != nil {
		t.Error(err)
	} else if got, err := c.ask(); err != nil || got != "b" {
		t.Errorf("a server that is gone: %q, %v", got, err)
	}
	if err := n.rebalance(t.Context(), strings.NewReader(`{"servers":[{"name":"a","host":"127.0.0.2"},{"name":"a","host":"127.0.0.3"}]}`)); err == nil || !strings.Contains(err.Error(), "does not take its configuration") {
		t.Errorf("two servers of one name: %v", err)
	}

	tell(both)
	for {
		c, err := dial(t)
		if err != nil {
			t.Fatal(err)
		}
		name, err := c.ask()
		if err != nil {
			t.Fatal(err)
		}
		if name != "a" {
			continue
		}
		ready.Store(false)
		if _, err := c.read.ReadByte(); err == nil {
			t.Error("a control plane that is not ready has said something")
		}
		break
	}
	for range 4 {
		c, err := dial(t)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.ask(); err != nil || got != "b" {
			t.Errorf("a control plane that is not ready: %q, %v", got, err)
		}
	}
}

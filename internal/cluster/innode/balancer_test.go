package innode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/golden"
)

func TestConfigOfHAProxy(t *testing.T) {
	for name, b := range map[string]Balancer{
		"none": {IPv4: true},
		"addresses": {IPv4: true, IPv6: true, Servers: []Server{
			{"dev-control-plane", "10.89.0.128"}, {"dev-control-plane2", "10.89.0.129"}, {"dev-control-plane3", "fd00::83"},
		}},
		"names": {IPv6: true, Servers: []Server{{"dev-control-plane", "dev-control-plane"}, {"dev-control-plane2", "dev-control-plane2"}}},
	} {
		text, err := b.config()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden.Check(t, "testdata/haproxy-"+name+".cfg", text)
	}
	for _, s := range []Server{{"", "10.0.0.1"}, {"a", ""}, {"a", "b\nglobal"}, {"a b", "10.0.0.1"}} {
		if _, err := (Balancer{IPv4: true, Servers: []Server{s}}).config(); !errors.Is(err, errs.Invalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestLastTold: a load balancer that restarts uses its last configuration.
func TestLastTold(t *testing.T) {
	n := node{t.TempDir()}
	for _, told := range []string{"", `{"ipv4":true,"servers":[{"name":"a","host":"10.0.0.9"}]}`} {
		if told != "" {
			if err := n.write(BalancerFile, told); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.writeLastConfig(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(n.path(HAProxyFile))
		if err != nil || strings.Contains(string(text), "server a 10.0.0.9:6443") != (told != "") || !strings.Contains(string(text), "bind 0.0.0.0:6443") {
			t.Errorf("told %q: %v\n%s", told, err, text)
		}
	}
	if err := n.write(BalancerFile, "{"); err != nil {
		t.Fatal(err)
	}
	if err := n.writeLastConfig(); !errors.Is(err, errs.Invalid) {
		t.Errorf("a broken file: %v", err)
	}
}

// fakeMaster starts a process for each reload. If stuck is set, the new process never becomes
// ready.
type fakeMaster struct {
	mu      sync.Mutex
	reloads int
	stuck   bool
	// seen receives a value when the client polls the result of a stuck reload.
	seen chan struct{}
}

func (f *fakeMaster) serve(conn net.Conn) {
	defer conn.Close()
	order, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch strings.TrimSpace(order) {
	case "reload":
		f.reloads++
	case "show proc":
		fmt.Fprintf(conn, "#<PID>          <type>          <reloads>       <uptime>        <version>\n1               master          %d               0d00h00m08s     2.6.12\n# workers\n", f.reloads)
		if f.stuck && f.reloads > 1 {
			fmt.Fprint(conn, "# old workers\n11               worker          1               0d00h00m08s     2.6.12\n")
			select {
			case f.seen <- struct{}{}:
			default:
			}
			return
		}
		fmt.Fprintf(conn, "%d               worker          0               0d00h00m08s     2.6.12\n", 10+f.reloads)
	}
}

// TestReload: a reload waits for haproxy to start. If haproxy keeps the old process, the reload
// reports it.
func TestReload(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "master.sock")
	f := &fakeMaster{seen: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() { done <- master{socket}.reload(t.Context()) }()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.serve(conn)
		}
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	if f.reloads != 1 {
		t.Errorf("%d reloads", f.reloads)
	}
	f.stuck = true
	f.mu.Unlock()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-f.seen
		cancel(errors.New("enough"))
	}()
	if err := (master{socket}).reload(ctx); err == nil || !strings.Contains(err.Error(), "former configuration") || !strings.Contains(err.Error(), "enough") {
		t.Errorf("a new process that does not come: %v", err)
	}
}

func TestCurrent(t *testing.T) {
	const head = "#<PID>  <type>  <reloads>  <uptime>  <version>\n7  master  3  0d00h01m28s  2.6.12\n"
	for answer, want := range map[string]string{
		"":   "",
		head: "",
		head + "# workers\n31 worker 0 0d00h00m00s 2.6.12\n# old workers\n29 worker 1 0d00h00m28s 2.6.12\n# programs\n": "31",
		head + "# workers\n# old workers\n29 worker 1 0d00h00m28s 2.6.12\n":                                             "",
		head + "# workers\n31 [was: a]    worker          0\n":                                                          "",
	} {
		if got := current(answer); got != want {
			t.Errorf("%q: %q, want %q", answer, got, want)
		}
	}
}

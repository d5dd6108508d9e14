package pageserver

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// logged is what a server has logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// take returns what was logged since the last call.
func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// TestReloadThatCannotBeApplied: a page that cannot be served as the configuration says is served as before, and the log
// has the reason and what to do. The daemon runs without a page that it cannot serve at all.
func TestReloadThatCannotBeApplied(t *testing.T) {
	var log logged
	world := podtest.NewWorld(t, podtest.Fake())
	s, err := New(Options{Pods: world.Daemon(nil), Images: world.Images, Instance: "test", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	answers := func(address string) bool {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	serve := func(change func(page *config.Page)) {
		t.Helper()
		cfg := config.DefaultDaemon()
		cfg.State = t.TempDir()
		change(&cfg.Page)
		s.Serve(context.WithoutCancel(t.Context()), cfg)
	}
	missing := func(page *config.Page) {
		page.Listen, page.TLSCert, page.TLSKey = "127.0.0.1:0", "/no/such/cert", "/no/such/key"
	}

	if state := s.State(); state != (State{}) {
		t.Errorf("before the first Serve: %+v", state)
	}
	serve(missing)
	if state := s.State(); state.Listen != "" || !strings.Contains(state.Fault, "/no/such/cert") {
		t.Errorf("at the start: %+v", state)
	}
	if said := log.take(); !strings.Contains(said, "level=ERROR") || !strings.Contains(said, "the node page is not served; mend the cause and reload the configuration") ||
		!strings.Contains(said, "/no/such/cert") || s.server.Address() != "" {
		t.Errorf("at the start, served at %q: %s", s.server.Address(), said)
	}
	serve(func(page *config.Page) { page.Listen = "127.0.0.1:0" })
	address := s.server.Address()
	if said := log.take(); strings.Contains(said, "level=ERROR") || !answers(address) {
		t.Fatalf("a page without a fault at %q: %s", address, said)
	}
	served := State{Listen: address, Auth: "token"}
	if state := s.State(); state != served {
		t.Errorf("a page without a fault: %+v, want %+v", state, served)
	}
	serve(missing)
	state := s.State()
	if !strings.Contains(state.Fault, "/no/such/cert") {
		t.Errorf("after a reload with a fault: %+v", state)
	}
	if state.Fault = ""; state != served {
		t.Errorf("after a reload with a fault: %+v, want %+v", state, served)
	}
	if said := log.take(); !strings.Contains(said, "level=ERROR") || !strings.Contains(said, "the node page is served as before; mend the cause and reload the configuration") ||
		!strings.Contains(said, "address="+address) || !strings.Contains(said, "/no/such/cert") || !answers(address) {
		t.Errorf("after a reload with a fault, at %q: %s", s.server.Address(), said)
	}
	serve(func(page *config.Page) { page.Listen = "" })
	if said := log.take(); strings.Contains(said, "level=ERROR") || answers(address) || s.State() != (State{}) {
		t.Errorf("after a page is turned off: %s, %+v", said, s.State())
	}
}

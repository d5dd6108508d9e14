package registry

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// explainOf explains app:1 of a registry.
func explainOf(t *testing.T, cfg Config, host string) image.Endpoint {
	t.Helper()
	named, err := reference.ParseDockerRef(host + "/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), named, Auth{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	shown, err := r.Explain(t.Context(), true)
	if err != nil || len(shown) != 1 {
		t.Fatalf("%s is explained as %+v, %v", host, shown, err)
	}
	return shown[0]
}

// TestTLSOfLoopbackRegistries: berth says what it does, which the answers prove: the certificates of both are not signed by an
// authority of the host.
func TestTLSOfLoopbackRegistries(t *testing.T) {
	s := newSite(t, &imagetest.Registry{})
	served := &imagetest.Registry{}
	served.Push("app", "1", s.img)
	server := httptest.NewTLSServer(served)
	t.Cleanup(server.Close)
	secure := strings.TrimPrefix(server.URL, "https://")
	want := []string{"the certificate is not verified: the registry is on the loopback address", "plain http if the server has no TLS"}
	for _, host := range []string{secure, s.hosts[0]} {
		if got := explainOf(t, s.cfg, host); !slices.Equal(got.TLS, want) || got.Attempt.Fault != "" {
			t.Errorf("%s: %q, %+v", host, got.TLS, got.Attempt)
		}
	}
	// With a server in its file, the certificate is verified.
	dir := filepath.Join(s.cfg.Dirs[0], secure)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "hosts.toml")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := explainOf(t, s.cfg, secure); got.Source != "default of the registry's name: "+path+" is empty" {
		t.Errorf("an empty file is explained as %q", got.Source)
	}
	if err := os.WriteFile(path, []byte("server = \""+server.URL+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	named, err := reference.ParseDockerRef(secure + "/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), named, Auth{}, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if shown, err := r.Explain(t.Context(), true); err == nil || len(shown) != 1 || !slices.Equal(shown[0].TLS, []string{"verified with the authorities of the host"}) {
		t.Errorf("a registry with a server in its file is explained as %+v, %v", shown, err)
	}
}

// TestASkippedEndpointIsNotTried.
func TestASkippedEndpointIsNotTried(t *testing.T) {
	mirror, home := &imagetest.Registry{}, &imagetest.Registry{}
	s := newSite(t, mirror, home)
	s.hostsFile(t, "server = \"http://"+s.hosts[1]+"\"\n[host.\"http://"+s.hosts[0]+"\"]\ncapabilities = [\"pull\"]\n")
	shown, err := s.open(t, Auth{}).Explain(t.Context(), true)
	if err != nil || len(shown) != 2 {
		t.Fatalf("%+v, %v", shown, err)
	}
	for i := range shown {
		if at := &shown[i]; (at.Skipped == "") != (at.Attempt != nil) || at.Mirror != (at.Attempt == nil) {
			t.Errorf("%s: skipped %q, attempt %+v", at.URL, at.Skipped, at.Attempt)
		}
	}
	if asked := mirror.Requests(); len(asked) > 0 {
		t.Errorf("the mirror was asked: %q", asked)
	}
}

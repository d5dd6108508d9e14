package httpserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/util/cert"

	"github.com/berthrun/berth/internal/tlsfiles"
	"github.com/berthrun/berth/internal/tlsfiles/tlstest"
)

// serving returns a server with these settings.
func serving(t *testing.T, settings Settings) *Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "berth_build_info{") })
	s := New(mux, "metrics", "metrics.listen", slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	if err := s.Apply(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	return s
}

// get returns the status and the body of an answer.
func get(t *testing.T, transport *http.Transport, url string) (int, string, error) {
	t.Helper()
	transport.DisableKeepAlives = true
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func TestServer(t *testing.T) {
	s := serving(t, Settings{Listen: "127.0.0.1:0"})
	status, body, err := get(t, &http.Transport{}, "http://"+s.Address()+"/metrics")
	if err != nil || status != http.StatusOK || !strings.Contains(body, "berth_build_info{") {
		t.Errorf("%d, %v: %.200s", status, err, body)
	}
	if status, _, err := get(t, &http.Transport{}, "http://"+s.Address()+"/"); err != nil || status != http.StatusNotFound {
		t.Errorf("another path: %d, %v", status, err)
	}
	old := s.Address()
	if err := s.Apply(t.Context(), Settings{}); err != nil || s.Address() != "" {
		t.Errorf("%v; it listens on %q", err, s.Address())
	}
	if _, _, err := get(t, &http.Transport{}, "http://"+old+"/metrics"); err == nil {
		t.Error("it serves on")
	}
}

// TestServerCompletesAnswers: a reload that turns the server off lets the answers in flight end.
func TestServerCompletesAnswers(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	handler := func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "first, ")
		w.(http.Flusher).Flush()
		close(begun)
		<-end
		io.WriteString(w, "last")
	}
	s := New(http.HandlerFunc(handler), "metrics", "metrics.listen", slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	if err := s.Apply(t.Context(), Settings{Listen: "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	address := s.Address()
	go func() {
		<-begun
		go s.Apply(context.Background(), Settings{})
		for {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				break
			}
			conn.Close()
		}
		close(end)
	}()
	if _, body, err := get(t, &http.Transport{}, "http://"+address); err != nil || body != "first, last" {
		t.Errorf("%q, %v", body, err)
	}
}

// TestServerOnSocket: only root may connect, and the socket goes with the server.
func TestServerOnSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.sock")
	s := serving(t, Settings{Listen: socketScheme + path})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v: want mode 0600", info, err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	if status, body, err := get(t, transport, "http://berth/metrics"); err != nil || status != http.StatusOK || !strings.Contains(body, "berth_build_info{") {
		t.Errorf("%d, %v", status, err)
	}
	s.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestServerAfterFaults: a fault names the key and the cause, and leaves the server as it is, also when the new settings have
// its address or its port.
func TestServerAfterFaults(t *testing.T) {
	s := serving(t, Settings{Listen: freeAddress(t)})
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	absent := tlsfiles.Files{CertFile: "/nonesuch.pem", KeyFile: "/nonesuch.key"}
	for name, settings := range map[string]Settings{
		"taken":                               {Listen: other.Addr().String()},
		"no certificate":                      {Listen: "127.0.0.2:0", TLS: absent},
		"no certificate for the same address": {Listen: s.Address(), TLS: absent},
		"another host's address":              {Listen: "203.0.113.1:" + port(s.Address())},
	} {
		err := s.Apply(t.Context(), settings)
		if err == nil || !strings.Contains(err.Error(), "metrics.listen") || !strings.Contains(err.Error(), settings.Listen) {
			t.Errorf("%s: %v", name, err)
		}
		if status, _, err := get(t, &http.Transport{}, "http://"+s.Address()+"/metrics"); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d, %v: the former address is not served", name, status, err)
		}
	}
}

// freeAddress is a loopback address whose port nobody has.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestServerWithTheSamePort: a server of one address begins to serve all addresses, and goes back.
func TestServerWithTheSamePort(t *testing.T) {
	one := freeAddress(t)
	all := "0.0.0.0:" + port(one)
	s := serving(t, Settings{Listen: one})
	for _, listen := range []string{all, one} {
		if err := s.Apply(t.Context(), Settings{Listen: listen}); err != nil {
			t.Fatal(err)
		}
		if loopback := strings.HasPrefix(s.Address(), "127.0.0.1:"); loopback != (listen == one) {
			t.Errorf("it listens on %s, want %s", s.Address(), listen)
		}
		if status, _, err := get(t, &http.Transport{}, "http://"+one+"/metrics"); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d, %v", listen, status, err)
		}
	}
}

// TestServerAfterClose: a reload that comes late opens nothing.
func TestServerAfterClose(t *testing.T) {
	s := serving(t, Settings{Listen: "127.0.0.1:0"})
	s.Close()
	if err := s.Apply(t.Context(), Settings{Listen: "127.0.0.1:0"}); err != nil || s.Address() != "" {
		t.Errorf("%v; it listens on %q", err, s.Address())
	}
}

// TestServerAsksForCertificates: with a client CA, clients without a certificate of it get nothing.
func TestServerAsksForCertificates(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	serverCert, serverKey, err := cert.GenerateSelfSignedCertKey("server", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	known, other := tlstest.ClientCertificate(t), tlstest.ClientCertificate(t)
	clientCert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: known.Certificate[0]})
	files := tlsfiles.Files{CertFile: file("crt", serverCert), KeyFile: file("key", serverKey), ClientCAFile: file("ca", clientCert)}
	s := serving(t, Settings{Listen: "127.0.0.1:0", TLS: files})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(serverCert)
	ask := func(client *tls.Certificate) (int, error) {
		config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if client != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, nil }
		}
		status, _, err := get(t, &http.Transport{TLSClientConfig: config}, "https://"+s.Address()+"/metrics")
		return status, err
	}
	if status, err := ask(nil); err == nil {
		t.Errorf("a client without a certificate is served: %d", status)
	}
	if status, err := ask(&other); err == nil {
		t.Errorf("a client with another certificate is served: %d", status)
	}
	if status, err := ask(&known); err != nil || status != http.StatusOK {
		t.Errorf("a client with the right certificate: %d, %v", status, err)
	}
	if status, _, err := get(t, &http.Transport{}, "http://"+s.Address()+"/metrics"); err == nil && status == http.StatusOK {
		t.Error("it serves without TLS")
	}
}

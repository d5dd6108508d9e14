package streaming

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/cert"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/tlsfiles"
	"github.com/berthrun/berth/internal/tlsfiles/tlstest"
)

// renew writes a new self-signed certificate for name, and returns it.
func renew(t *testing.T, f tlsfiles.Files, name string) (chain, key []byte) {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKey(name, []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{f.CertFile: chain, f.KeyFile: key} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return chain, key
}

func tlsFiles(t *testing.T) tlsfiles.Files {
	dir := t.TempDir()
	return tlsfiles.Files{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key")}
}

// shown returns the name in the certificate that a server presents.
func shown(t *testing.T, s *Server, config *tls.Config) (string, error) {
	t.Helper()
	config.InsecureSkipVerify = true // the test reads the certificate itself
	d := tls.Dialer{Config: config}
	c, err := d.DialContext(t.Context(), "tcp", s.Address())
	if err != nil {
		return "", err
	}
	defer c.Close()
	// With TLS 1.3 a server rejects a client's certificate only after the handshake.
	if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return "", err
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return "", err
	}
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func TestSessionsOverTLS(t *testing.T) {
	files := tlsFiles(t)
	chain, _ := renew(t, files, "one")
	s := serveWith(t, Options{TLS: &files, Runtime: &fake{exec: func(_ context.Context, spec *engine.ExecSpec) (int32, error) {
		_, err := fmt.Fprint(spec.Stdout, "secret")
		return 4, err
	}}})
	raw := execURL(t, s, &runtimeapi.ExecRequest{Stdout: true})
	if !strings.HasPrefix(raw, "https://127.0.0.1:") {
		t.Fatalf("the URL is %s", raw)
	}
	executors := map[string]func(*rest.Config) (remotecommand.Executor, error){
		"spdy": func(config *rest.Config) (remotecommand.Executor, error) {
			u, err := url.Parse(execURL(t, s, &runtimeapi.ExecRequest{Stdout: true}))
			if err != nil {
				return nil, err
			}
			return remotecommand.NewSPDYExecutor(config, http.MethodPost, u)
		},
		"websocket": func(config *rest.Config) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(config, http.MethodGet, execURL(t, s, &runtimeapi.ExecRequest{Stdout: true}))
		},
	}
	for name, executor := range executors {
		run := func(trust []byte) (string, error) {
			e, err := executor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: trust}})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
			return out.String(), err
		}
		if out, err := run(chain); err == nil || !strings.Contains(err.Error(), "exit code 4") || out != "secret" {
			t.Errorf("%s: %q, %v", name, out, err)
		}
		if out, err := run(nil); err == nil || !strings.Contains(err.Error(), "unknown authority") || out != "" {
			t.Errorf("%s, of a client that does not know the authority: %q, %v", name, out, err)
		}
	}
}

// The context of a session ends when its client disconnects, under TLS too.
func TestClientGoneOverTLS(t *testing.T) {
	files := tlsFiles(t)
	chain, _ := renew(t, files, "one")
	began, ended := make(chan struct{}), make(chan struct{})
	s := serveWith(t, Options{TLS: &files, Runtime: &fake{exec: func(ctx context.Context, _ *engine.ExecSpec) (int32, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	}}})
	e, err := remotecommand.NewWebSocketExecutor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: chain}},
		http.MethodGet, execURL(t, s, &runtimeapi.ExecRequest{Stdout: true}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: new(bytes.Buffer)}) }()
	within(t, "the session", began)
	cancel()
	within(t, "the end of the client", done)
	within(t, "the end of the session", ended)
}

func TestCertificatesAreReadAgain(t *testing.T) {
	files := tlsFiles(t)
	renew(t, files, "one")
	s := serveWith(t, Options{TLS: &files})
	for _, step := range []struct {
		name   string
		change func()
		want   string
	}{
		{"at first", func() {}, "one@"},
		{"renewed", func() { renew(t, files, "two-is-longer") }, "two-is-longer@"},
		{"half written", func() { os.WriteFile(files.CertFile, []byte("-----BEGIN"), 0o600) }, "two-is-longer@"},
		{"removed", func() { os.Remove(files.CertFile) }, "two-is-longer@"},
		{"there again", func() { renew(t, files, "three") }, "three@"},
	} {
		step.change()
		if name, err := shown(t, s, &tls.Config{}); err != nil || !strings.HasPrefix(name, step.want) {
			t.Errorf("%s: %q, %v, want %q", step.name, name, err, step.want)
		}
	}
}

func TestOldVersionsOfTLSAreRefused(t *testing.T) {
	files := tlsFiles(t)
	renew(t, files, "one")
	files.MinVersion = tls.VersionTLS13
	s := serveWith(t, Options{TLS: &files})
	if _, err := shown(t, s, &tls.Config{MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is spoken though 1.3 is the oldest")
	}
	if _, err := shown(t, s, &tls.Config{}); err != nil {
		t.Errorf("TLS 1.3: %v", err)
	}
}

func TestClientsNeedACertificateOfTheAuthority(t *testing.T) {
	files := tlsFiles(t)
	renew(t, files, "one")
	files.ClientCAFile = filepath.Join(t.TempDir(), "ca")
	known := tlstest.ClientCertificate(t)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: known.Certificate[0]})
	if err := os.WriteFile(files.ClientCAFile, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveWith(t, Options{TLS: &files})
	if _, err := shown(t, s, &tls.Config{}); err == nil {
		t.Error("a client without a certificate is let in")
	}
	if _, err := shown(t, s, &tls.Config{Certificates: []tls.Certificate{tlstest.ClientCertificate(t)}}); err == nil {
		t.Error("a client with a certificate of its own is let in")
	}
	if _, err := shown(t, s, &tls.Config{Certificates: []tls.Certificate{known}}); err != nil {
		t.Errorf("a client with the right certificate: %v", err)
	}
}

func TestSelfSigned(t *testing.T) {
	s := serveWith(t, Options{TLS: &tlsfiles.Files{}})
	if name, err := shown(t, s, &tls.Config{}); err != nil || !strings.HasPrefix(name, "127.0.0.1@") {
		t.Errorf("%q, %v", name, err)
	}
}

func TestBadCertificatesAreInvalid(t *testing.T) {
	good := tlsFiles(t)
	renew(t, good, "one")
	other := tlsFiles(t)
	renew(t, other, "two")
	for name, files := range map[string]tlsfiles.Files{
		"missing":         {CertFile: "/no/such", KeyFile: "/no/such"},
		"of another key":  {CertFile: good.CertFile, KeyFile: other.KeyFile},
		"bad authorities": {CertFile: good.CertFile, KeyFile: good.KeyFile, ClientCAFile: good.KeyFile},
	} {
		_, err := Listen(t.Context(), Options{Runtime: &fake{}, Log: slog.New(slog.DiscardHandler), TLS: &files})
		if !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The server refuses a client without any of the configured suites. TLS 1.3 has no configurable
// suites.
func TestOtherCipherSuitesAreRefused(t *testing.T) {
	files := tlsFiles(t)
	renew(t, files, "one")
	files.CipherSuites = []uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}
	s := serveWith(t, Options{TLS: &files})
	for _, c := range []struct {
		name    string
		config  *tls.Config
		refused bool
	}{
		{"another suite", &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}}, true},
		{"the suite", &tls.Config{MaxVersion: tls.VersionTLS12}, false},
		{"TLS 1.3", &tls.Config{}, false},
	} {
		if _, err := shown(t, s, c.config); (err != nil) != c.refused {
			t.Errorf("%s: %v, refused: %v", c.name, err, c.refused)
		}
	}
}

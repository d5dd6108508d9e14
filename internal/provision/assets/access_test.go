package assets_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/assets"
)

// secret must not appear in any message.
const secret = "hunter2"

// basicSecret is "u:hunter2".
const basicSecret = "Basic dTpodW50ZXIy"

func write(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// authority writes the certificate with which a test server signs.
func authority(t *testing.T, server *httptest.Server) string {
	t.Helper()
	return write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
}

// guarded accepts only requests with the header, and records the others.
func guarded(header string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != header {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func serving(data []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(data) })
}

// open refuses requests with credentials.
func open(t *testing.T, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a server that they are not for was given the credentials")
		}
		next.ServeHTTP(w, r)
	})
}

func TestCredentials(t *testing.T) {
	data := []byte("binary")
	own := httptest.NewServer(guarded(basicSecret, serving(data)))
	defer own.Close()
	other := httptest.NewServer(open(t, serving(data)))
	defer other.Close()
	broken := httptest.NewServer(http.NotFoundHandler())
	defer broken.Close()
	signed := other.URL + "/a?signature=" + secret
	moved := httptest.NewServer(guarded(basicSecret, http.RedirectHandler(signed, http.StatusFound)))
	defer moved.Close()
	host := strings.TrimPrefix(own.URL, "http://")
	for _, c := range []struct {
		name, credentials string
		sources           []string
		kind              error
		words             string
	}{
		{"user and password", "u:" + secret, []string{own.URL + "/a"}, nil, ""},
		{"header", basicSecret, []string{own.URL + "/a"}, nil, ""},
		{"docker's file", fmt.Sprintf(`{"auths": {%q: {"auth": "dTpodW50ZXIy"}}}`, host), []string{broken.URL + "/a", own.URL + "/a"}, nil, ""},
		{"docker's file without it", `{"auths": {"another.example": {"auth": "dTpodW50ZXIy"}}}`, []string{own.URL + "/a"}, errs.NotFound, "has no credentials for it"},
		{"docker's file, path first", fmt.Sprintf(`{"auths": {%q: {"auth": "dTpodW50ZXIy"}}}`, host), []string{"/none", own.URL + "/a"}, nil, ""},
		{"path first", "u:" + secret, []string{"/none", own.URL + "/a"}, nil, ""},
		{"mirror on another host", "u:" + secret, []string{broken.URL + "/a", other.URL + "/a"}, nil, ""},
		{"sent to another host", "u:" + secret, []string{moved.URL + "/a"}, nil, ""},
		{"none", "", []string{own.URL + "/a"}, errs.NotFound, "name a file in credentials"},
		{"wrong", "u:x" + secret, []string{own.URL + "/a"}, errs.NotFound, "does not take the credentials of "},
		{"no credentials", secret, []string{own.URL + "/a"}, errs.Invalid, "want user:password"},
		{"query", "", []string{broken.URL + "/a?signature=" + secret}, errs.NotFound, "/a?…: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStore()
			ref := provision.AssetRef{Name: "a", Sources: c.sources, Digest: digest.FromBytes(data).String(), Format: "raw"}
			if c.credentials != "" {
				ref.Access.Credentials = write(t, c.credentials)
			}
			_, err := s.Fetch(t.Context(), ref)
			checkError(t, err, c.kind, c.words)
		})
	}
}

// checkError compares an error, and fails if it contains the secret.
func checkError(t *testing.T, err, kind error, words string) {
	t.Helper()
	if !errors.Is(err, kind) || err != nil && !strings.Contains(err.Error(), words) {
		t.Errorf("error %v, want kind %v with %q", err, kind, words)
	}
	if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "dTpodW50ZXIy")) {
		t.Errorf("a secret is told: %v", err)
	}
}

// TestCredentialsThatAreNotThere: missing credentials are an error only when an asset is fetched.
func TestCredentialsThatAreNotThere(t *testing.T) {
	data := []byte("binary")
	server := httptest.NewServer(serving(data))
	defer server.Close()
	s, h := newStore()
	ref := provision.AssetRef{Name: "a", Sources: []string{server.URL + "/a"}, Digest: digest.FromBytes(data).String(), Format: "raw"}
	ref.Access.Credentials = "/none/auth"
	_, err := s.Fetch(t.Context(), ref)
	checkError(t, err, errs.NotFound, "/none/auth")
	ref.Access.Credentials = ""
	if _, err := s.Fetch(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	ref.Access.Credentials = "/none/auth"
	if _, err := assets.New(h.Files(), "/var/lib/assets").Fetch(t.Context(), ref); err != nil {
		t.Errorf("what is in the cache needs no credentials: %v", err)
	}
}

func TestAuthorities(t *testing.T) {
	data := []byte("binary")
	server := httptest.NewTLSServer(serving(data))
	defer server.Close()
	strict := httptest.NewUnstartedServer(serving(data))
	// Here the client's certificate is the server's own.
	strict.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	strict.StartTLS()
	defer strict.Close()
	key, err := x509.MarshalPKCS8PrivateKey(strict.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	private := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	ca := authority(t, server)
	for _, c := range []struct {
		name, source string
		access       provision.Access
		kind         error
		words        string
	}{
		{"unknown", server.URL, provision.Access{}, errs.Invalid, "name the authority that signs for the server by ca"},
		{"known", server.URL, provision.Access{CA: []string{ca}}, nil, ""},
		{"not there", server.URL, provision.Access{CA: []string{"/none.pem"}}, errs.NotFound, "/none.pem"},
		{"no certificate", server.URL, provision.Access{CA: []string{write(t, "text")}}, errs.Invalid, "no certificate in PEM"},
		{"client without", strict.URL, provision.Access{CA: []string{ca}}, errs.Unavailable, "certificate required"},
		{"client with", strict.URL, provision.Access{CA: []string{ca}, ClientCert: ca, ClientKey: private}, nil, ""},
		{"client without key", strict.URL, provision.Access{CA: []string{ca}, ClientCert: ca}, errs.Invalid, "clientCert: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStore()
			ref := provision.AssetRef{Name: "a", Sources: []string{c.source + "/a"}, Digest: digest.FromBytes(data).String(), Format: "raw", Access: c.access}
			_, err := s.Fetch(t.Context(), ref)
			checkError(t, err, c.kind, c.words)
		})
	}
}

// registry serves one artifact with one layer.
func registry(layer []byte) http.Handler {
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: ocispec.DescriptorEmptyJSON,
		Layers: []ocispec.Descriptor{{MediaType: "application/octet-stream", Digest: digest.FromBytes(layer), Size: int64(len(layer))}},
	})
	if err != nil {
		panic(err)
	}
	serve := func(kind string, data []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
			w.Write(data)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/v2/tools/manifests/", serve(ocispec.MediaTypeImageManifest, manifest))
	mux.Handle("/v2/tools/blobs/"+digest.FromBytes(layer).String(), serve("application/octet-stream", layer))
	return mux
}

// tokens is a registry that requires a token. Its token server requires the password.
func tokens(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/token", guarded(basicSecret, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"token": "t"}`) })))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="s",scope="repository:tools:pull"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
	return mux
}

func TestRegistries(t *testing.T) {
	data := []byte("binary")
	plain := httptest.NewServer(guarded(basicSecret, registry(data)))
	defer plain.Close()
	secure := httptest.NewTLSServer(guarded(basicSecret, registry(data)))
	defer secure.Close()
	token := httptest.NewServer(tokens(registry(data)))
	defer token.Close()
	ca := authority(t, secure)
	for _, c := range []struct {
		name, server, credentials string
		ca                        []string
		kind                      error
		words                     string
	}{
		{"plain", plain.URL, "u:" + secret, nil, nil, ""},
		{"with TLS", secure.URL, "u:" + secret, []string{ca}, nil, ""},
		{"token", token.URL, "u:" + secret, nil, nil, ""},
		{"token in the file", token.URL, "Bearer t", nil, nil, ""},
		{"docker's file", plain.URL, `{"auths": {"` + strings.TrimPrefix(plain.URL, "http://") + `": {"username": "u", "password": "` + secret + `"}}}`, nil, nil, ""},
		{"none", plain.URL, "", nil, errs.NotFound, "name a file in credentials"},
		{"wrong", plain.URL, "u:x" + secret, nil, errs.NotFound, "does not take the credentials of "},
		{"wrong token", token.URL, "Bearer " + secret, nil, errs.NotFound, "does not take the credentials of "},
		{"wrong password for the token", token.URL, "u:x" + secret, nil, errs.NotFound, "does not take the credentials of "},
		{"another authority", secure.URL, "u:" + secret, []string{write(t, string(unrelated(t)))}, errs.Invalid, "by ca"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStore()
			_, host, _ := strings.Cut(c.server, "://")
			ref := provision.AssetRef{Name: "a", Sources: []string{"oci://" + host + "/tools:1"}, Digest: digest.FromBytes(data).String(), Format: "raw"}
			ref.Access.CA = c.ca
			if c.credentials != "" {
				ref.Access.Credentials = write(t, c.credentials)
			}
			_, err := s.Fetch(t.Context(), ref)
			checkError(t, err, c.kind, c.words)
		})
	}
}

// unrelated returns the certificate of an authority that has signed nothing.
func unrelated(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

//go:build integration

package local

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

const (
	registryUser     = "joe"
	registryPassword = "s3cr3t-passw0rd"
	// registryHtpasswd has the user with the bcrypt hash of the password.
	registryHtpasswd = "joe:$2a$04$teQw/MfgIQMuyJrNTsBXTOqR2sj0NvqVLVIglzBwV8RO/BoncRSr.\n"
)

// authority is a certificate authority that no host knows, with files in dir.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature})
	return a
}

// sign makes a certificate of the authority, with the files NAME.crt and NAME.key: its own, if it has none yet.
func (a *authority) sign(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{a.file(name + ".crt"): {Type: "CERTIFICATE", Bytes: der}, a.file(name + ".key"): {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// server makes the certificate of a server at 127.0.0.1.
func (a *authority) server(name string) {
	a.sign(name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	})
}

// trust returns the configuration of a store that has these files for a registry.
func trust(t *testing.T, host string, files map[string]string) Config {
	t.Helper()
	cfg := testConfig(t)
	dir := filepath.Join(t.TempDir(), "certs.d")
	if err := os.MkdirAll(filepath.Join(dir, host), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, host, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.RegistryConfigDirs = append(cfg.RegistryConfigDirs, dir)
	return cfg
}

// wantPull pulls an image into a new store. kind is that of the error, nil for none; the error has these words, and no
// password.
func wantPull(t *testing.T, cfg Config, ref string, auth image.Auth, kind error, words ...string) {
	t.Helper()
	_, err := open(t, cfg).Pull(context.Background(), ref, auth, nil)
	if kind == nil {
		if err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, kind) {
		t.Fatalf("%v, want kind %v", err, kind)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error has no %q: %v", word, err)
		}
	}
	if strings.Contains(err.Error(), "passw0rd") {
		t.Errorf("the error has the password: %v", err)
	}
}

// TestRealRegistryWithAPrivateCA pulls over TLS from Debian's registry, whose certificate no authority of the host has signed.
func TestRealRegistryWithAPrivateCA(t *testing.T) {
	a := newAuthority(t)
	a.server("registry")
	a.sign("node", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature})
	files := fmt.Sprintf("tls: {certificate: %s, key: %s", a.file("registry.crt"), a.file("registry.key"))
	storage, ca := t.TempDir(), a.file("ca.crt")
	dockerRegistryWith(t, storage, "", "", func(host string) { upload(t, host, "team/app", "v1", build(t, layersOf(2, "gzip"))) })
	content := func(name string) string {
		data, err := os.ReadFile(a.file(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}

	t.Run("server", func(t *testing.T) {
		dockerRegistryWith(t, storage, files+"}", "", func(host string) {
			ref := host + "/team/app:v1"
			strict := map[string]string{"hosts.toml": fmt.Sprintf("server = \"https://%s\"\n", host)} // without it, a registry on loopback is trusted
			wantPull(t, trust(t, host, strict), ref, image.Auth{}, errs.Unavailable, host, "certificate signed by unknown authority")
			for name, c := range map[string]map[string]string{
				"ca in hosts.toml":          {"hosts.toml": fmt.Sprintf("server = \"https://%s\"\nca = %q\n", host, ca)},
				"skip_verify in hosts.toml": {"hosts.toml": fmt.Sprintf("server = \"https://%s\"\nskip_verify = true\n", host)},
				"files as docker has them":  {"ca.crt": content("ca.crt")},
			} {
				t.Run(name, func(t *testing.T) { wantPull(t, trust(t, host, c), ref, image.Auth{}, nil) })
			}
		})
	})
	t.Run("client", func(t *testing.T) {
		dockerRegistryWith(t, storage, files+fmt.Sprintf(", clientcas: [%s]}", ca), "", func(host string) {
			ref := host + "/team/app:v1"
			hosts := fmt.Sprintf("server = \"https://%s\"\nca = %q\n", host, ca)
			wantPull(t, trust(t, host, map[string]string{"hosts.toml": hosts}), ref, image.Auth{}, errs.Unavailable, host, "certificate")
			hosts += fmt.Sprintf("client = [[%q, %q]]\n", a.file("node.crt"), a.file("node.key"))
			wantPull(t, trust(t, host, map[string]string{"hosts.toml": hosts}), ref, image.Auth{}, nil)
			docker := map[string]string{"ca.crt": content("ca.crt"), "client.cert": content("node.crt"), "client.key": content("node.key")}
			wantPull(t, trust(t, host, docker), ref, image.Auth{}, nil)
		})
	})
}

// TestRealRegistryWithPasswords pulls from Debian's registry with credentials from each place that has them.
func TestRealRegistryWithPasswords(t *testing.T) {
	a := newAuthority(t)
	a.server("registry")
	storage := t.TempDir()
	dockerRegistryWith(t, storage, "", "", func(host string) { upload(t, host, "team/app", "v1", build(t, layersOf(2, "gzip"))) })
	if err := os.WriteFile(a.file("htpasswd"), []byte(registryHtpasswd), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := tokenServer(t, a)
	for name, demand := range map[string]string{
		"basic": fmt.Sprintf("auth: {htpasswd: {realm: team, path: %s}}\n", a.file("htpasswd")),
		"token": fmt.Sprintf("auth: {token: {realm: %q, service: registry.example, issuer: tokens, rootcertbundle: %s}}\n", tokens+"/token", a.file("ca.crt")),
	} {
		t.Run(name, func(t *testing.T) {
			encryption := fmt.Sprintf("tls: {certificate: %s, key: %s}", a.file("registry.crt"), a.file("registry.key"))
			dockerRegistryWith(t, storage, encryption, demand, func(host string) { pullWithEachCredential(t, a, host, name == "token") })
		})
	}
}

func pullWithEachCredential(t *testing.T, a *authority, host string, withTokens bool) {
	t.Helper()
	ref := host + "/team/app:v1"
	cfg := func(t *testing.T) Config {
		t.Helper()
		return trust(t, host, map[string]string{"hosts.toml": fmt.Sprintf("server = \"https://%s\"\nca = %q\n", host, a.file("ca.crt"))})
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registryPassword))
	good := map[string]image.Auth{
		"user and password": {Username: registryUser, Password: registryPassword},
		"auth":              {Auth: encoded, ServerAddress: host},
	}
	if withTokens {
		good["identity token"] = image.Auth{IdentityToken: registryPassword}
	}
	for name, auth := range good {
		t.Run(name, func(t *testing.T) { wantPull(t, cfg(t), ref, auth, nil) })
	}
	for name, auth := range map[string]image.Auth{
		"no credentials": {},
		"wrong password": {Username: registryUser, Password: "wr0ng-passw0rd"},
		"of another one": {Username: registryUser, Password: registryPassword, ServerAddress: "elsewhere.example"},
	} {
		t.Run(name, func(t *testing.T) { wantPull(t, cfg(t), ref, auth, errs.Denied, host, "(401)") })
	}
	t.Run("config.json of the node", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, host, encoded), 0o600); err != nil {
			t.Fatal(err)
		}
		own := cfg(t)
		own.CredentialFiles = []string{file}
		wantPull(t, own, ref, image.Auth{}, nil)
	})
}

// tokenServer gives out tokens for pulls to the user, as the distribution project specifies it, and returns its URL.
func tokenServer(t *testing.T, a *authority) string {
	t.Helper()
	a.server("tokens")
	cert, key := a.sign("signer", &x509.Certificate{KeyUsage: x509.KeyUsageDigitalSignature})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: crypto.Signer(key)},
		(&jose.SignerOptions{}).WithType("JWT").WithHeader("x5c", []string{base64.StdEncoding.EncodeToString(cert.Raw)}))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(a.file("tokens.crt"), a.file("tokens.key"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, basic := r.BasicAuth()
		if !basic {
			user, password = r.PostFormValue("username"), r.PostFormValue("password")
		}
		access := []map[string]any{}
		known := user == registryUser && password == registryPassword || r.PostFormValue("refresh_token") == registryPassword
		if scope := strings.Split(r.FormValue("scope"), ":"); known && len(scope) == 3 && scope[2] == "pull" {
			access = append(access, map[string]any{"type": scope[0], "name": scope[1], "actions": []string{"pull"}})
		}
		if user != "" && !known {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		now := time.Now().Unix()
		claims, _ := json.Marshal(map[string]any{
			"iss": "tokens", "aud": r.FormValue("service"), "sub": user, "jti": fmt.Sprint(now), "iat": now, "nbf": now - 10, "exp": now + 300, "access": access,
		})
		signed, err := signer.Sign(claims)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		token, _ := signed.CompactSerialize()
		_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": 300})
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}} //nolint:gosec // versions are those of the test
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// dockerRegistryWith runs use with Debian's registry, whose images are in a directory. encryption is a part of the http
// section of its configuration, demand a section.
func dockerRegistryWith(t *testing.T, storage, encryption, demand string, use func(host string)) {
	t.Helper()
	scheme, more := "http", ""
	if encryption != "" {
		scheme, more = "https", ", "+encryption
	}
	host, stop := startDockerRegistry(t, scheme, func(host string) string {
		return fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q%s}\n%s",
			storage, host, more, demand)
	})
	defer stop()
	use(host)
}

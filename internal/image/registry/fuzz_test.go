package registry

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hoststoml"
)

// FuzzAccess: for any hosts.toml and any credentials in a request, the hosts are valid, credentials
// are sent only to their registry, and no error contains them.
func FuzzAccess(f *testing.F) {
	const hosts = "server = \"https://r.example\"\n[host.\"https://mirror.example:5000/v2/x\"]\n  capabilities = [\"pull\", \"resolve\"]\n" +
		"  skip_verify = true\n  override_path = true\n  dial_timeout = \"1s\"\n  [host.\"https://mirror.example:5000/v2/x\".header]\n    x-a = [\"b\"]\n"
	f.Add([]byte(hosts), "joe", "secret-word-1", "", "", "", "")
	f.Add([]byte(`server = "http://[::1]:5000"`), "", "", "am9lOnNlY3JldA==", "https://r.example/v1/", "", "")
	f.Add([]byte("Server = \"a\"\n[Host.\"https://b\"]\nCA = \"x\"\n[host.'http://c']\nclient = [\"a\", [\"b\", \"c\"]]\nheader.a = [\"b\", 1]\n"), "", "", "", "", "", "")
	f.Add([]byte("[host.\"https://b\"]\ncapabilities = [\"Pull\", \"referrers\"]\ndial_timeout = \"x\"\n[[host.x.y]]\n[host.\"https://b\".header]\na = 1\n"), "", "", "", "", "", "")
	f.Add([]byte("[host]\n[host.\"://\"]\nca = [1, [\"a\"]]\nclient = [[\"a\",\"b\",\"c\"]]\n"), "", "", "", "other.example", "identity-token", "registry-token")
	dir := f.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "r.example"), 0o700); err != nil {
		f.Fatal(err)
	}
	reader := f.TempDir()
	if err := os.WriteFile(filepath.Join(reader, "not.cert"), nil, 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, toml []byte, user, password, encoded, address, identity, token string) {
		if err := os.WriteFile(filepath.Join(dir, "r.example", "hosts.toml"), toml, 0o600); err != nil {
			t.Fatal(err)
		}
		auth := Auth{Username: user, Password: password, Auth: encoded, ServerAddress: address, IdentityToken: identity, RegistryToken: token}
		checkScrubbed(t, auth)
		checkLikeContainerd(t, reader, toml)
		r := &Repository{domain: "r.example"}
		found, err := r.configure(t.Context(), auth, Config{Dirs: []string{dir}})
		if err = cmp.Or(err, r.sources.fault); err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%v blames nobody", err)
			}
			return
		}
		if len(found) == 0 {
			t.Errorf("%q leaves no host to ask", toml)
		}
		for _, host := range found {
			if host.Client == nil || host.Host == "" || host.Scheme != "http" && host.Scheme != "https" {
				t.Errorf("%q has the host %+v", toml, host)
			}
			checkStranger(t, host.Host, auth)
		}
	})
}

// checkLikeContainerd: a hosts.toml has a fault if containerd does not use it, or asks a server without a name, and in no other
// case. The directory has a certificate that containerd cannot read, so it returns an error instead of the servers that it asks
// without the file.
func checkLikeContainerd(t *testing.T, dir string, toml []byte) {
	t.Helper()
	if len(toml) == 0 {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, hoststoml.Name), toml, 0o600); err != nil {
		t.Fatal(err)
	}
	hosts, err := config.ConfigureHosts(t.Context(), config.HostOptions{HostDir: func(string) (string, error) { return dir, nil }})("r.example")
	unnamed := slices.ContainsFunc(hosts, func(h docker.RegistryHost) bool { return h.Host == "" || h.Scheme != "http" && h.Scheme != "https" })
	described := hoststoml.Describe(toml)
	described.CheckFiles(dir, os.ReadFile)
	if faults := described.AllFaults(); (len(faults) > 0) != (err != nil || unnamed) {
		t.Errorf("%q has the faults %+v; containerd's error is %v, its hosts %+v", toml, faults, err, hosts)
	}
}

// checkStranger: no credentials are sent to a host that is neither the registry nor its token
// server.
func checkStranger(t *testing.T, host string, auth Auth) {
	t.Helper()
	sent, err := auth.Credentials("r.example")
	if err != nil || sent.Bearer == "" || host == "r.example" {
		return
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://stranger.example/v2/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := (bearer{"r.example", sent.Bearer}).Authorize(t.Context(), req); err != nil || req.Header.Get("Authorization") != "" {
		t.Errorf("a stranger is told %q, %v", req.Header, err)
	}
}

// checkScrubbed: the text of an error contains no string that is long enough to be a secret.
func checkScrubbed(t *testing.T, auth Auth) {
	t.Helper()
	const shortest = 8
	text := Scrub(fmt.Errorf("cannot ask with %q, %q, %q, %q", auth.Password, auth.Auth, auth.IdentityToken, auth.RegistryToken), auth).Error()
	for _, secret := range []string{auth.Password, auth.Auth, auth.IdentityToken, auth.RegistryToken} {
		plain := !strings.ContainsFunc(secret, func(r rune) bool { return r < '0' || r > 'z' || r == '\\' })
		if len(secret) >= shortest && plain && strings.Contains(text, secret) && !strings.Contains(redacted, secret) {
			t.Errorf("%q is left in %q", secret, text)
		}
	}
}

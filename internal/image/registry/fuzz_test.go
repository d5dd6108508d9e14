package registry

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzAccess: for any hosts.toml and any credentials in a request, the hosts are valid, credentials
// are sent only to their registry, and no error contains them.
func FuzzAccess(f *testing.F) {
	const hosts = "server = \"https://r.example\"\n[host.\"https://mirror.example:5000/v2/x\"]\n  capabilities = [\"pull\", \"resolve\"]\n" +
		"  skip_verify = true\n  override_path = true\n  dial_timeout = \"1s\"\n  [host.\"https://mirror.example:5000/v2/x\".header]\n    x-a = [\"b\"]\n"
	f.Add([]byte(hosts), "joe", "secret-word-1", "", "", "", "")
	f.Add([]byte(`server = "http://[::1]:5000"`), "", "", "am9lOnNlY3JldA==", "https://r.example/v1/", "", "")
	f.Add([]byte("[host]\n[host.\"://\"]\nca = [1, [\"a\"]]\nclient = [[\"a\",\"b\",\"c\"]]\n"), "", "", "", "other.example", "identity-token", "registry-token")
	dir := f.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "r.example"), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, toml []byte, user, password, encoded, address, identity, token string) {
		if err := os.WriteFile(filepath.Join(dir, "r.example", "hosts.toml"), toml, 0o600); err != nil {
			t.Fatal(err)
		}
		auth := Auth{Username: user, Password: password, Auth: encoded, ServerAddress: address, IdentityToken: identity, RegistryToken: token}
		checkScrubbed(t, auth)
		found, err := (&Repository{domain: "r.example"}).configure(t.Context(), auth, Config{Dirs: []string{dir}})
		if err != nil {
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

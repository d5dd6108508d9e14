package render

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/facts"
)

// withoutCurl returns a directory with all programs except curl.
func withoutCurl(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"} {
		entries, err := os.ReadDir(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() == "curl" {
				continue
			}
			if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// TestScriptHasAccessAsApplyHas: the script sends credentials only to the source's server, and
// trusts the given authorities beside the machine's own. Neither is on a command line or left
// behind.
func TestScriptHasAccessAsApplyHas(t *testing.T) {
	file, digest := archive(t, "bin/containerd", "bin/runc")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	broken := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" {
			t.Errorf("the first source was asked with %q", r.Header.Get("Authorization"))
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer broken.Close()
	mirror := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the mirror was given the source's credentials")
		}
		w.Write(data)
	}))
	defer mirror.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: mirror.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("runtime: {name: containerd, assets: [{source: %s/%s, mirrors: [%s/b], digest: %q, credentials: /etc/berth/a.auth, ca: [%s]}]}\n",
		broken.URL, filepath.Base(file), mirror.URL, digest, ca)
	out, err := Script(input(t, "debian 12", text, nil))
	if err != nil {
		t.Fatal(err)
	}
	tried := false
	for _, program := range []string{"curl", "wget"} {
		if _, err := exec.LookPath(program); err != nil {
			continue // a machine needs one of the two
		}
		tried = true
		t.Run(program, func(t *testing.T) {
			root := writeRoot(t, "ID=debian\nVERSION_ID=12\n")
			path := "/usr/bin:/bin:/usr/sbin:/sbin"
			if program == "wget" {
				path = withoutCurl(t)
			}
			if said, err := runIn(t, root, path, string(out.Text)); err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			got := tree(t, root)
			if _, there := got["/usr/local/bin/containerd"]; !there {
				t.Error("it was not installed")
			}
			for name, content := range got {
				if name != "/etc/berth/a.auth" && (strings.Contains(content, "user:secret") || strings.Contains(content, "dXNlcjpzZWNyZXQ=")) {
					t.Errorf("the secret is in %s", name)
				}
			}
		})
	}
	if !tried {
		t.Error("there is neither curl nor wget")
	}
}

// TestAccessThatOnlyBerthHas: such access is refused by name, or berth uses it at the first boot.
func TestAccessThatOnlyBerthHas(t *testing.T) {
	text := "runtime: {name: berth, assets: [{source: https://assets.example/berth, digest: \"" + zeros + "\", credentials: /etc/berth/a.auth}]}\n"
	hosts := func(s *facts.Assumptions) {
		s.Read = func(string) ([]byte, error) { return []byte(`{"auths": {"assets.example": {"auth": "dTpw"}}}`), nil }
	}
	if _, err := Script(input(t, "debian 12", text, hosts)); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "/etc/berth/a.auth names hosts") {
		t.Errorf("script: %v", err)
	}
	if _, err := Ignition(input(t, "debian 12", text, nil)); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "asset berth: Ignition reads no credentials") {
		t.Errorf("ignition: %v", err)
	}
}

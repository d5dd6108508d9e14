package source

import (
	"bytes"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

const goodNode = "apiVersion: berth.run/v1alpha1\nkind: Node\nruntime: {name: berth}\n"

// nodeServer serves a valid file, one with a fault, one that is too large, and redirects.
func nodeServer(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	serve := func(path string, body []byte) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
	}
	serve("/good.yaml", []byte(goodNode))
	serve("/bad.yaml", []byte("kind: Pod\n"))
	serve("/large.yaml", bytes.Repeat([]byte("#"), nodefile.MaxSize+1))
	mux.Handle("/moved.yaml", http.RedirectHandler("/good.yaml", http.StatusFound))
	mux.Handle("/open.yaml", http.RedirectHandler("http://127.0.0.1:1/good.yaml", http.StatusFound))
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	return server
}

// TestRemoteNodeFile runs as a separate process, because Go reads the trusted authorities once per
// process.
func TestRemoteNodeFile(t *testing.T) {
	server := nodeServer(t)
	ca := t.TempDir() + "/ca.pem"
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := digest.FromString(goodNode).Encoded()
	other := strings.Repeat("0", 64)
	large := digest.FromBytes(bytes.Repeat([]byte("#"), nodefile.MaxSize+1)).Encoded()
	for _, c := range []struct{ name, file, flag, want string }{
		{"digest at the end", server.URL + "/good.yaml#sha256=" + sum, "", ""},
		{"digest as a flag", server.URL + "/good.yaml", "sha256:" + sum, ""},
		{"both", server.URL + "/good.yaml#sha256=" + sum, sum, ""},
		{"redirected", server.URL + "/moved.yaml#sha256=" + sum, "", ""},
		{"no digest", server.URL + "/good.yaml", "", "needs its digest"},
		{"another digest", server.URL + "/good.yaml#sha256=" + other, "", "not the expected file"},
		{"two digests", server.URL + "/good.yaml#sha256=" + sum, other, "two digests"},
		{"no digest at all", server.URL + "/good.yaml#sha256=12", "", "64 hexadecimal digits"},
		{"another end", server.URL + "/good.yaml#md5=" + sum, "", "want #sha256=DIGEST"},
		{"no TLS", "http" + strings.TrimPrefix(server.URL, "https") + "/good.yaml#sha256=" + sum, "", "only https"},
		{"redirected to no TLS", server.URL + "/open.yaml#sha256=" + sum, "", "redirects to http://"},
		{"too large", server.URL + "/large.yaml#sha256=" + large, "", "has more than"},
		{"not there", server.URL + "/none.yaml#sha256=" + sum, "", "404"},
		{"nobody there", "https://127.0.0.1:1/good.yaml#sha256=" + sum, "", "connection refused"},
		{"a password", strings.Replace(server.URL, "https://", "https://me:secret@", 1) + "/none.yaml?key=hidden#sha256=" + sum, "", "404"},
		{"a password, nobody there", "https://me:secret@127.0.0.1:1/good.yaml?key=hidden#sha256=" + sum, "", "connection refused"},
		{"with a fault", server.URL + "/bad.yaml#sha256=" + digest.FromString("kind: Pod\n").Encoded(), "", server.URL + "/bad.yaml:1:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRemoteNodeFileOfProcess$")
			cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+ca, "NODE_FILE="+c.file, "NODE_SUM="+c.flag, "NO_PROXY=127.0.0.1")
			out, err := cmd.CombinedOutput()
			if (err != nil) != (c.want != "") || !strings.Contains(string(out), c.want) {
				t.Errorf("%s: %v, want %q in\n%s", c.file, err, c.want, out)
			}
			if strings.Contains(string(out), "secret") || strings.Contains(string(out), "hidden") {
				t.Errorf("a secret of the URL is shown:\n%s", out)
			}
		})
	}
}

// TestRemoteNodeFileOfProcess reads the URL that the environment names.
func TestRemoteNodeFileOfProcess(t *testing.T) {
	file := os.Getenv("NODE_FILE")
	if file == "" {
		return // it is started by TestRemoteNodeFile
	}
	n, text, err := Load(t.Context(), file, os.Getenv("NODE_SUM"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n.Runtime.Name != "berth" || string(text) != goodNode {
		t.Errorf("the file is read as %+v, %q", n.Runtime, text)
	}
}

// TestUnknownAuthority: a certificate without a trusted authority is refused.
func TestUnknownAuthority(t *testing.T) {
	server := nodeServer(t)
	_, _, err := Load(t.Context(), server.URL+"/good.yaml#sha256="+digest.FromString(goodNode).Encoded(), "", nil)
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("load returned %v", err)
	}
}

// TestDigestOfALocalFile: the digest of a local file is checked if one is given.
func TestDigestOfALocalFile(t *testing.T) {
	for sum, want := range map[string]bool{"": true, digest.FromString(goodNode).Encoded(): true, strings.Repeat("0", 64): false} {
		if _, _, err := Load(t.Context(), "-", sum, strings.NewReader(goodNode)); (err == nil) != want {
			t.Errorf("digest %q: %v", sum, err)
		}
	}
}

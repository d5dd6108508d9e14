package tlsfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/util/cert"
)

// TestCheck: each file has its own fault.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	chain, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	goodCert, goodKey, otherKey, text := file("cert", chain), file("key", key), file("other", other), file("text", []byte("text"))
	missing := filepath.Join(dir, "missing")
	for name, c := range map[string]struct {
		files                  Files
		cert, key, authorities string // parts of the faults
	}{
		"none":             {},
		"good":             {files: Files{CertFile: goodCert, KeyFile: goodKey, ClientCAFile: goodCert}},
		"another key":      {files: Files{CertFile: goodCert, KeyFile: otherKey}, cert: "cannot be used with key " + otherKey},
		"not PEM":          {files: Files{CertFile: text, KeyFile: goodKey, ClientCAFile: text}, cert: "cannot be used", authorities: "holds no certificate"},
		"a missing key":    {files: Files{CertFile: goodCert, KeyFile: missing}, key: "missing"},
		"missing files":    {files: Files{CertFile: missing, KeyFile: missing, ClientCAFile: missing}, cert: "missing", key: "missing", authorities: "missing"},
		"authorities only": {files: Files{ClientCAFile: missing}, authorities: "missing"},
	} {
		cert, key, authorities := c.files.Check()
		for what, got := range map[string]struct {
			err  error
			want string
		}{"certificate": {cert, c.cert}, "key": {key, c.key}, "authorities": {authorities, c.authorities}} {
			if got.want == "" && got.err != nil || got.want != "" && (got.err == nil || !strings.Contains(got.err.Error(), got.want)) {
				t.Errorf("%s, %s: %v, want %q", name, what, got.err, got.want)
			}
			if got.want == "missing" && !errors.Is(got.err, fs.ErrNotExist) {
				t.Errorf("%s, %s: %v is not that of a missing file", name, what, got.err)
			}
		}
	}
}

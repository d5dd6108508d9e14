//go:build integration

package local

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestSignedBy: signatures of GPG keys come from where the files of image.lookaside_dir say, and are kept.
func TestSignedBy(t *testing.T) {
	ctx := context.Background()
	g := newGuarded(t)
	key, dir, signatures := imagetest.NewGPG(), t.TempDir(), t.TempDir()
	server := httptest.NewServer(http.FileServer(http.Dir(signatures)))
	t.Cleanup(server.Close)
	ring := filepath.Join(t.TempDir(), "key.gpg")
	put(t, ring, key.PublicKey())
	g.write(t, fmt.Sprintf(`{"default": [{"type":"signedBy", "keyType":"GPGKeys", "keyPath": %q}]}`, ring))
	rules := g.cfg.PullRules
	rules.LookasideDir = dir
	g.store.SetPullRules(rules)
	config := filepath.Join(dir, "test.yaml")
	put(t, config, fmt.Appendf(nil, "docker:\n  %q:\n    lookaside: %s/base/\n", g.host, server.URL))

	_, err := g.pull("/team/app:v1")
	refused(t, err, g.policy, "signedBy", "no signature was found")
	at := filepath.Join(signatures, "base/team", "app@"+strings.Replace(g.img.Manifest.Digest.String(), ":", "=", 1))
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	claim := imagetest.SimpleClaim(g.host+"/team/app:v1", g.img.Manifest.Digest)
	put(t, filepath.Join(at, "signature-1"), imagetest.NewGPG().Sign(claim, 0))
	_, err = g.pull("/team/app:v1")
	refused(t, err, server.URL+"/base/team/app@sha256=", "signature-1", "which is not trusted")
	put(t, filepath.Join(at, "signature-2"), key.Sign(claim, 0))
	id, err := g.pull("/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}

	// The node has the signature now.
	server.Close()
	if err := g.store.Admit(ctx, "", id, g.host+"/team/app:v1"); err != nil {
		t.Error(err)
	}
	put(t, ring, imagetest.NewGPG().PublicKey())
	if err := g.store.Admit(ctx, "", id, g.host+"/team/app:v1"); err == nil || !strings.Contains(err.Error(), "cannot fetch the signature") {
		t.Errorf("with another key, and without the server: %v", err)
	}
	put(t, config, []byte("docker:\n  x:\n    lookaside: ftp://x\n"))
	if err := g.store.Admit(ctx, "", id, g.host+"/team/app:v1"); err == nil || !strings.Contains(err.Error(), "image.lookaside_dir: ") {
		t.Errorf("with a wrong file: %v", err)
	}
	put(t, config, fmt.Appendf(nil, "default-docker:\n  sigstore: file://%s/base\n", signatures))
	refused(t, g.store.Admit(ctx, "", id, g.host+"/team/app:v1"), "file://"+signatures+"/base/team/app@sha256=", "which is not trusted")
}

// TestSlowSignatures: each signature is progress, also where all of them take longer than a server may send nothing.
func TestSlowSignatures(t *testing.T) {
	g := newGuarded(t)
	key, dir := imagetest.NewGPG(), t.TempDir()
	claim := imagetest.SimpleClaim(g.host+"/team/app:v1", g.img.Manifest.Digest)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		time.Sleep(400 * time.Millisecond)
		switch filepath.Base(req.URL.Path) {
		case "signature-1", "signature-2", "signature-3":
			_, _ = w.Write(imagetest.NewGPG().Sign(claim, 0))
		case "signature-4":
			_, _ = w.Write(key.Sign(claim, 0))
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(server.Close)
	ring := filepath.Join(t.TempDir(), "key.gpg")
	put(t, ring, key.PublicKey())
	put(t, filepath.Join(dir, "test.yaml"), fmt.Appendf(nil, "default-docker: {lookaside: %q}\n", server.URL))
	g.write(t, fmt.Sprintf(`{"default": [{"type":"signedBy", "keyType":"GPGKeys", "keyPath": %q}]}`, ring))
	rules := g.cfg.PullRules
	rules.LookasideDir, rules.NoProgressTimeout = dir, 1200*time.Millisecond
	g.store.SetPullRules(rules)
	if _, err := g.pull("/team/app:v1"); err != nil {
		t.Error(err)
	}
}

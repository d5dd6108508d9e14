//go:build integration

package local

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// verifierOf has a store ask one program, which accepts every image. It returns the program, and counts its calls.
func (g *guarded) verifierOf(t *testing.T) (program string, calls func() int) {
	t.Helper()
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	put(t, log, nil)
	program = filepath.Join(dir, "check")
	accept(t, program, log)
	rules := g.cfg.PullRules
	rules.PolicyFile, rules.VerifierDir = "", dir
	g.store.SetPullRules(rules)
	return program, func() int { return strings.Count(string(must(t, log)), "\n") }
}

// accept writes a verifier that accepts every image. Each call gives it another content.
func accept(t *testing.T, program, log string) {
	t.Helper()
	before, _ := os.ReadFile(program)
	text := fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\ncat > /dev/null\n# %d\n", log, len(before))
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// evidence is the file with what has shown that the image may be used.
func (g *guarded) evidence() string {
	return filepath.Join(g.cfg.Root, "signatures", strings.TrimPrefix(g.img.ID(), "sha256:")+".json")
}

// admits asserts that a container may be made of the image by each name.
func (g *guarded) admits(t *testing.T, what string, refs ...string) {
	t.Helper()
	for _, ref := range refs {
		if err := g.store.Admit(context.Background(), "", g.img.ID(), g.host+ref); err != nil {
			t.Errorf("%s: %s: %v", what, ref, err)
		}
	}
}

// TestVerifiersAcceptAnImageAgain: an image has several names, and programs change.
func TestVerifiersAcceptAnImageAgain(t *testing.T) {
	g := newGuarded(t)
	program, calls := g.verifierOf(t)
	g.registry.Push("team/app", "v2", g.img)
	refs := []string{"/team/app:v1", "/team/app:v2", "/team/app@" + g.img.Manifest.Digest.String()}
	for _, ref := range refs {
		if id, err := g.pull(ref); err != nil || id != g.img.ID() {
			t.Fatalf("%s: %s, %v", ref, id, err)
		}
	}
	asked := calls()
	g.admits(t, "accepted by its pull", refs...)
	if again := calls(); again != asked {
		t.Errorf("a program was asked again by a name that it has accepted: %d calls, then %d", asked, again)
	}

	accept(t, program, filepath.Join(t.TempDir(), "new-calls"))
	var all sync.WaitGroup // containers of one pod are made at the same time
	for range 4 {
		for _, ref := range refs {
			all.Go(func() { g.admits(t, "with a changed program", ref) })
		}
	}
	all.Wait()
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused(t, g.store.Admit(t.Context(), "", g.img.ID(), g.host+refs[0]), "check rejected image")
}

// TestSignaturesAreKeptAgain: a key is replaced, and a loss of power leaves a part of a file.
func TestSignaturesAreKeptAgain(t *testing.T) {
	g := newGuarded(t)
	g.sign(g.signer, g.img.Manifest.Digest)
	if _, err := g.pull("/team/app:v1"); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(filepath.Dir(g.policy), "key.pub")
	fresh := imagetest.NewSigner()
	put(t, key, fresh.PublicKey())
	refused(t, g.store.Admit(t.Context(), "", g.img.ID(), g.host+"/team/app:v1"), "not made with a trusted key")
	g.sign(fresh, g.img.Manifest.Digest)
	g.admits(t, "signed with the new key", "/team/app:v1")
	if _, err := g.pull("/team/app:v1"); err != nil {
		t.Errorf("signed with the new key: %v", err)
	}

	whole := must(t, g.evidence())
	put(t, g.evidence(), whole[:len(whole)/2])
	g.admits(t, "with a part of the file", "/team/app:v1")
	if data := must(t, g.evidence()); !json.Valid(data) {
		t.Errorf("the damaged file stays: %q", data)
	}
	asked := len(g.registry.Requests())
	g.admits(t, "with the file", "/team/app:v1")
	if more := g.registry.Requests()[asked:]; len(more) > 0 {
		t.Errorf("the registry was asked for signatures that the node has: %v", more)
	}
}

// TestAnImageIsJudgedByTheManifestOfItsName: a signature of an index stays one of the image when another registry has the
// same image without the index, and a program gets the digest that the name has.
func TestAnImageIsJudgedByTheManifestOfItsName(t *testing.T) {
	g := newGuarded(t)
	index := g.registry.PushIndex("team/app", "multi", map[string]*imagetest.Image{"linux/" + runtime.GOARCH: g.img})
	g.registry.Push("other/app", "v1", g.img)
	g.sign(g.signer, index.Digest)
	key := filepath.Join(filepath.Dir(g.policy), "key.pub")
	g.write(t, fmt.Sprintf(`{"default": [{"type":"reject"}], "transports": {"docker": {
		%q: [{"type":"sigstoreSigned", "keyPath": %q, "signedIdentity": {"type": "matchRepository"}}],
		%q: [{"type":"insecureAcceptAnything"}]}}}`, g.host+"/team", key, g.host+"/other"))
	names := []string{"/team/app:multi", "/other/app:v1", "/team/app@" + index.Digest.String()}
	for _, ref := range names[:2] {
		if id, err := g.pull(ref); err != nil || id != g.img.ID() {
			t.Fatalf("%s: %s, %v", ref, id, err)
		}
	}
	asked := len(g.registry.Requests())
	g.admits(t, "after a pull of the manifest alone", names...)
	if more := g.registry.Requests()[asked:]; len(more) > 0 {
		t.Errorf("the registry was asked for signatures that the node has: %v", more)
	}

	_, calls := g.verifierOf(t)
	for _, ref := range names {
		if _, err := g.pull(ref); err != nil {
			t.Fatal(err)
		}
	}
	before := calls()
	g.admits(t, "accepted by its pull", names...)
	if again := calls(); again != before {
		t.Errorf("a program was asked again: %d calls, then %d", before, again)
	}
}

// TestOnlyAcceptedSignaturesAreKept: anybody who can push to a repository can add signatures to an image. The node keeps
// those that count, and shows the others where it explains.
func TestOnlyAcceptedSignaturesAreKept(t *testing.T) {
	g := newGuarded(t)
	g.sign(imagetest.NewSigner(), g.img.Manifest.Digest)
	bundle := g.signer.Bundle(g.host+"/team/app", g.img.Manifest.Digest, "https://sigstore.dev/cosign/sign/v1")
	g.registry.PushBundle("team/app", g.img.Manifest.Digest, bundle)
	if _, err := g.pull("/team/app:v1"); err != nil {
		t.Fatal(err)
	}
	var kept struct {
		Signatures []struct {
			Bundle []byte `json:"bundle"`
		} `json:"signatures"`
	}
	if err := json.Unmarshal(must(t, g.evidence()), &kept); err != nil {
		t.Fatal(err)
	}
	if len(kept.Signatures) != 1 || string(kept.Signatures[0].Bundle) != string(bundle) {
		t.Errorf("the node keeps %s", must(t, g.evidence()))
	}
	asked := len(g.registry.Requests())
	g.admits(t, "with the signature that counts", "/team/app:v1")
	if more := g.registry.Requests()[asked:]; len(more) > 0 {
		t.Errorf("the registry was asked for signatures that the node has: %v", more)
	}
}

// TestAStartRemovesWhatAFailedPullHasKept: signatures are kept before the layers come.
func TestAStartRemovesWhatAFailedPullHasKept(t *testing.T) {
	g := newGuarded(t)
	other := build(t, layersOf(2, "gzip"))
	g.registry.Push("team/app", "v2", other)
	g.sign(g.signer, g.img.Manifest.Digest)
	g.sign(g.signer, other.Manifest.Digest)
	g.registry.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		missing := strings.HasSuffix(req.URL.Path, other.Layers[1].Digest.String())
		if missing {
			http.NotFound(w, req)
		}
		return missing
	}
	if _, err := g.pull("/team/app:v1"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.pull("/team/app:v2"); err == nil {
		t.Fatal("an image without a layer was pulled")
	}
	kept := func() []string {
		files, err := filepath.Glob(filepath.Join(g.cfg.Root, "signatures/*"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	if files := kept(); len(files) != 2 {
		t.Errorf("before the start: %v", files)
	}
	if err := g.store.Close(); err != nil {
		t.Fatal(err)
	}
	g.store = open(t, g.cfg)
	if files := kept(); len(files) != 1 || files[0] != g.evidence() {
		t.Errorf("after the start: %v, want %s alone", files, g.evidence())
	}
}

//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// guarded is a registry with one image, and a store with a policy that wants signatures of a key.
type guarded struct {
	registry *imagetest.Registry
	host     string
	signer   *imagetest.Signer
	img      *imagetest.Image
	policy   string
	cfg      Config
	store    *Images
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{registry: &imagetest.Registry{}, signer: imagetest.NewSigner(), img: build(t, layersOf(1, "gzip"))}
	g.host = serve(t, g.registry)
	g.registry.Push("team/app", "v1", g.img)
	g.cfg = testConfig(t)
	dir := t.TempDir()
	g.policy = filepath.Join(dir, "policy.json")
	put(t, filepath.Join(dir, "key.pub"), g.signer.PublicKey())
	g.write(t, fmt.Sprintf(`{"default": [{"type":"reject"}], "transports": {"docker": {%q: [{"type":"sigstoreSigned",
		"keyPath": %q, "signedIdentity": {"type": "matchRepository"}}]}}}`, g.host+"/team", filepath.Join(dir, "key.pub")))
	g.cfg.PolicyFile = g.policy
	g.store = open(t, g.cfg)
	return g
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (g *guarded) write(t *testing.T, policy string) { put(t, g.policy, []byte(policy)) }

// sign makes a signature of a digest available, as cosign does.
func (g *guarded) sign(by *imagetest.Signer, dgst digest.Digest) {
	payload := imagetest.Claim(g.host+"/team/app", dgst)
	g.registry.PushClaim("team/app", dgst, imagetest.NewBlob(imagetest.ClaimType, payload), by.Sign(payload), nil)
}

func (g *guarded) pull(ref string) (string, error) {
	return g.store.Pull(context.Background(), g.host+ref, image.Auth{}, nil)
}

// refused asserts that an error is a refusal, and that its text has all parts.
func refused(t *testing.T, err error, parts ...string) {
	t.Helper()
	var r *image.RefusedError
	if !errors.As(err, &r) {
		t.Errorf("got %v, want a refusal", err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q", err, part)
		}
	}
}

func TestPolicyOfPulls(t *testing.T) {
	g := newGuarded(t)
	asked := len(g.registry.Requests())
	_, err := g.pull("/other/app:v1")
	refused(t, err, g.policy, "scope default", "reject")
	if more := g.registry.Requests()[asked:]; len(more) > 0 {
		t.Errorf("a registry whose images are rejected was asked %v", more)
	}
	_, err = g.pull("/team/app:v1")
	refused(t, err, g.policy, "scope docker:"+g.host+"/team", "sigstoreSigned", "no signature was found")
	if sent := g.registry.Sent(g.img.Layers[0].Digest); sent > 0 {
		t.Errorf("%d bytes of a layer were fetched", sent)
	}
	g.sign(imagetest.NewSigner(), g.img.Manifest.Digest)
	_, err = g.pull("/team/app:v1")
	refused(t, err, "not made with a trusted key")
	g.sign(g.signer, g.img.Manifest.Digest)
	id, err := g.pull("/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}

	// The tag moves to an image that is not signed, and its own digest is what counts.
	other := build(t, layersOf(2, "gzip"))
	g.registry.Push("team/app", "v1", other)
	_, err = g.pull("/team/app:v1")
	refused(t, err, "no signature was found")
	g.registry.Push("team/app", "v2", g.img)
	if again, err := g.pull("/team/app:v2"); err != nil || again != id {
		t.Errorf("pulled %s, %v", again, err)
	}

	// A wrong file refuses all.
	g.write(t, `{"default": [{"type":"insecureAcceptAnything"}], "typo": 1}`)
	_, err = g.pull("/team/app:v2")
	refused(t, err, g.policy, "field typo: is unknown")
	refused(t, g.store.Admit(context.Background(), id, ""), "field typo")
}

func TestHostileSignaturesOfRegistries(t *testing.T) {
	g := newGuarded(t)
	payload := imagetest.Claim(g.host+"/team/app", g.img.Manifest.Digest)
	good := g.signer.Sign(payload)
	huge := append(payload[:len(payload):len(payload)], make([]byte, 2<<20)...)
	for _, test := range map[string]struct {
		blob imagetest.Blob
		want string
	}{
		"media type": {imagetest.NewBlob("text/plain", payload), "media type"},
		"huge":       {imagetest.NewBlob(imagetest.ClaimType, huge), "at most"},
		"truncated":  {imagetest.NewBlob(imagetest.ClaimType, payload[:20]), "not made with a trusted key"},
	} {
		g.registry.PushClaim("team/app", g.img.Manifest.Digest, test.blob, good, nil)
		_, err := g.pull("/team/app:v1")
		refused(t, err, test.want)
	}
	g.registry.PushBundle("team/app", g.img.Manifest.Digest, g.signer.Bundle(g.host+"/team/app", g.img.Manifest.Digest, "https://sigstore.dev/cosign/sign/v1"))
	if _, err := g.pull("/team/app:v1"); err != nil {
		t.Errorf("a good bundle beside a bad signature: %v", err)
	}
}

// A signature of an index is one of all its images; one of another platform's manifest is not.
func TestSignaturesOfAnIndex(t *testing.T) {
	g := newGuarded(t)
	foreign := build(t, layersOf(2, "gzip"))
	index := g.registry.PushIndex("team/app", "multi", map[string]*imagetest.Image{"linux/" + runtime.GOARCH: g.img, "linux/s390x": foreign})
	g.sign(g.signer, foreign.Manifest.Digest)
	_, err := g.pull("/team/app:multi")
	refused(t, err, "no signature was found")
	g.sign(g.signer, index.Digest)
	if _, err := g.pull("/team/app:multi"); err != nil {
		t.Errorf("with a signed index: %v", err)
	}
}

// An image that was pulled before the policy changed is checked when a container is made.
func TestAdmission(t *testing.T) {
	ctx := context.Background()
	g := newGuarded(t)
	signed := string(must(t, g.policy))
	g.write(t, `{"default": [{"type":"insecureAcceptAnything"}]}`)
	id, err := g.pull("/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	name := g.host + "/team/app:v1"
	if err := g.store.Admit(ctx, id, name); err != nil {
		t.Errorf("accepted: %v", err)
	}
	g.write(t, signed)
	refused(t, g.store.Admit(ctx, id, name), "no signature was found", name)
	refused(t, g.store.Admit(ctx, id, id), "no signature was found")
	g.sign(g.signer, g.img.Manifest.Digest)
	if err := g.store.Admit(ctx, id, name); err != nil {
		t.Errorf("signed since: %v", err)
	}
	// The node has the signature now, and needs no registry for it, also after a restart.
	g.registry.PushManifest("team/app", strings.Replace(g.img.Manifest.Digest.String(), ":", "-", 1)+".sig", imagetest.NewBlob(imagespec.MediaTypeImageManifest, []byte("{")))
	if err := g.store.Close(); err != nil {
		t.Fatal(err)
	}
	g.store = open(t, g.cfg)
	if err := g.store.Admit(ctx, id, id); err != nil {
		t.Errorf("with the signature that the node has: %v", err)
	}
	g.write(t, `{"default": [{"type":"reject"}]}`)
	refused(t, g.store.Admit(ctx, id, name), "reject")
}

func must(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestVerifierPrograms(t *testing.T) {
	ctx := context.Background()
	g := newGuarded(t)
	dir := filepath.Join(t.TempDir(), "verifiers")
	rules := g.cfg.PullRules
	rules.PolicyFile, rules.VerifierDir = "", dir
	g.store.SetPullRules(rules)
	_, err := g.pull("/team/app:v1")
	refused(t, err, dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	calls := filepath.Join(t.TempDir(), "calls")
	program := filepath.Join(dir, "check")
	script := "#!/bin/sh\necho \"$@\" >> " + calls + "\ncat > /dev/null\necho because\nexit "
	if err := os.WriteFile(program, []byte(script+"1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = g.pull("/team/app:v1")
	refused(t, err, "check rejected image", "because")
	if err := os.WriteFile(program, []byte(script+"0\n#accepts\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	id, err := g.pull("/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	want := "-name " + g.host + "/team/app:v1 -digest " + g.img.Manifest.Digest.String() + " -stdin-media-type " + imagespec.MediaTypeDescriptor
	lines := strings.Split(strings.TrimSpace(string(must(t, calls))), "\n")
	if lines[len(lines)-1] != want {
		t.Errorf("called with %q, want %q", lines[len(lines)-1], want)
	}
	if err := g.store.Admit(ctx, id, g.host+"/team/app:v1"); err != nil {
		t.Error(err)
	}
	if again := strings.Count(string(must(t, calls)), "\n"); again != len(lines) {
		t.Errorf("a program that has accepted the image was asked again: %d calls", again)
	}
}

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
	refused(t, g.store.Admit(context.Background(), "", id, ""), "field typo")
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
	if err := g.store.Admit(ctx, "", id, name); err != nil {
		t.Errorf("accepted: %v", err)
	}
	g.write(t, signed)
	refused(t, g.store.Admit(ctx, "", id, name), "no signature was found", name)
	refused(t, g.store.Admit(ctx, "", id, id), "no signature was found")
	g.sign(g.signer, g.img.Manifest.Digest)
	if err := g.store.Admit(ctx, "", id, name); err != nil {
		t.Errorf("signed since: %v", err)
	}
	// The node has the signature now, and needs no registry for it, also after a restart.
	g.registry.PushManifest("team/app", strings.Replace(g.img.Manifest.Digest.String(), ":", "-", 1)+".sig", imagetest.NewBlob(imagespec.MediaTypeImageManifest, []byte("{")))
	if err := g.store.Close(); err != nil {
		t.Fatal(err)
	}
	g.store = open(t, g.cfg)
	if err := g.store.Admit(ctx, "", id, id); err != nil {
		t.Errorf("with the signature that the node has: %v", err)
	}
	g.write(t, `{"default": [{"type":"reject"}]}`)
	refused(t, g.store.Admit(ctx, "", id, name), "reject")
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
	if err := g.store.Admit(ctx, "", id, g.host+"/team/app:v1"); err != nil {
		t.Error(err)
	}
	if again := strings.Count(string(must(t, calls)), "\n"); again != len(lines) {
		t.Errorf("a program that has accepted the image was asked again: %d calls", again)
	}
}

// TestExplainAdmission: what decides about an image is shown, and --try decides as a pull does. It leaves nothing.
func TestExplainAdmission(t *testing.T) {
	ctx := context.Background()
	g := newGuarded(t)
	explain := func(ref string, try bool) *image.Admission {
		t.Helper()
		e, err := g.store.Explain(ctx, image.PullTarget{}, g.host+ref, image.Auth{}, try)
		if err != nil {
			t.Fatal(err)
		}
		return e.Admission
	}
	if a := explain("/team/none:v1", true); a.Trial == nil || a.Trial.Accepted || a.Trial.Fault != "no endpoint has it; see their answers" {
		t.Errorf("an image that the registry does not have: %+v", a.Trial)
	}
	asked := len(g.registry.Requests())
	a := explain("/other/app:v1", false)
	if p := a.Policy; p == nil || p.File != g.policy || p.Scope != "default" || len(p.Requirements) != 1 || p.Requirements[0].Type != "reject" || a.Trial != nil || a.Verifiers != nil {
		t.Errorf("a rejected image: %+v", a)
	}
	a = explain("/team/app:v1", false)
	if p := a.Policy; p.Scope != "docker:"+g.host+"/team" || len(p.Requirements) != 1 || len(p.Requirements[0].Keys) != 1 || !strings.Contains(p.Requirements[0].Identity, g.host+"/team/app") {
		t.Errorf("a guarded image: %+v", a.Policy)
	}
	if more := g.registry.Requests()[asked:]; len(more) > 0 {
		t.Errorf("the registry was asked %v", more)
	}
	if trial := explain("/other/app:v1", true).Trial; trial.Accepted || !strings.Contains(trial.Fault, "rejected") {
		t.Errorf("a rejected image: %+v", trial)
	}
	want := func(accepted bool, fault string, signatures ...string) {
		t.Helper()
		trial := explain("/team/app:v1", true).Trial
		if trial.Accepted != accepted || !strings.Contains(trial.Fault, fault) || (fault == "") != (trial.Fault == "") || len(trial.Signatures) != len(signatures) ||
			trial.Digest != g.img.Manifest.Digest {
			t.Errorf("%+v, want %q", trial, fault)
			return
		}
		for i, s := range trial.Signatures {
			if !strings.Contains(s.Fault, signatures[i]) || (s.Fault == "") != (signatures[i] == "") {
				t.Errorf("signature %+v, want %q", s, signatures[i])
			}
		}
	}
	want(false, "no signature was found")
	g.sign(imagetest.NewSigner(), g.img.Manifest.Digest)
	want(false, "not made with a trusted key", "not made with a trusted key")
	g.sign(g.signer, g.img.Manifest.Digest)
	want(true, "", "")
	left, _ := filepath.Glob(filepath.Join(g.cfg.Root, "content/blobs/*/*"))
	kept, _ := filepath.Glob(filepath.Join(g.cfg.Root, "signatures/*"))
	if list, err := g.store.List(ctx); err != nil || len(list)+len(left)+len(kept) > 0 {
		t.Errorf("left: %v, %v, %v, %v", list, left, kept, err)
	}

	// The programs are asked, also those that have accepted the image before.
	dir := t.TempDir()
	for name, code := range map[string]string{"a-check": "0", "b-check": "0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\ncat > /dev/null\necho because\nexit "+code+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	rules := g.cfg.PullRules
	rules.VerifierDir = dir
	g.store.SetPullRules(rules)
	a = explain("/team/app:v1", true)
	if v := a.Verifiers; v == nil || v.Dir != dir || strings.Join(v.Programs, " ") != "a-check b-check" || !a.Trial.Accepted {
		t.Errorf("programs: %+v, %+v", v, a.Trial)
	}
	rules.VerifierDir = filepath.Join(dir, "absent")
	g.store.SetPullRules(rules)
	if a = explain("/team/app:v1", false); !strings.Contains(a.Verifiers.Fault, "absent") {
		t.Errorf("without the directory: %+v", a.Verifiers)
	}
	g.write(t, `{"default": 1}`)
	if a = explain("/team/app:v1", false); !strings.Contains(a.Policy.Fault, "field default") || a.Policy.Requirements != nil {
		t.Errorf("a wrong file: %+v", a.Policy)
	}
	g.store.SetPullRules(PullRules{})
	if a = explain("/team/app:v1", true); a != nil {
		t.Errorf("without a policy: %+v", a)
	}
}

// TestSignedIndexOfAPlatform: the signature of an index also holds for its image for the platform of a handler, at its pull, for a
// container, and after a restart. That of another platform's image does not.
func TestSignedIndexOfAPlatform(t *testing.T) {
	g := newGuarded(t)
	foreign := buildFor(t, wasm, "1")
	index := g.registry.PushIndex("team/app", "multi", map[string]*imagetest.Image{"linux/" + runtime.GOARCH: g.img, wasm: foreign})
	g.sign(g.signer, g.img.Manifest.Digest)
	name, target := g.host+"/team/app:multi", image.PullTarget{Platform: wasm}
	_, err := g.store.PullFor(t.Context(), target, name, image.Auth{}, nil)
	refused(t, err, "no signature was found")
	g.sign(g.signer, index.Digest)
	id, err := g.store.PullFor(t.Context(), target, name, image.Auth{}, nil)
	if err != nil || id != foreign.ID() {
		t.Fatalf("with a signed index: %s, %v", id, err)
	}
	if e, err := g.store.Explain(t.Context(), target, name, image.Auth{}, true); err != nil || e.Platform != wasm || e.Present != name ||
		e.Admission.Trial.Digest != index.Digest || !e.Admission.Trial.Accepted {
		t.Errorf("explained: %+v, %v", e, err)
	}
	if err := g.store.Close(); err != nil {
		t.Fatal(err)
	}
	g.store = open(t, g.cfg)
	g.registry.Intercept = down // the node has the signature
	for _, ref := range []string{name, g.host + "/team/app@" + index.Digest.String(), id} {
		if err := g.store.Admit(t.Context(), "", id, ref); err != nil {
			t.Errorf("a container of %s: %v", ref, err)
		}
	}
}

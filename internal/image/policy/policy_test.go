package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Read(write(t, "policy.json", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func named(t *testing.T, ref string) reference.Named {
	t.Helper()
	n, err := reference.ParseDockerRef(ref)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMostSpecificScope(t *testing.T) {
	const accept = `[{"type":"insecureAcceptAnything"}]`
	scopes := []string{
		"reg.example.com:5000/team/app:v1", "reg.example.com:5000/team/app", "reg.example.com:5000/team", "reg.example.com:5000",
		"*.Example.com", "*.com", "Up.test:443/team", "two.test", "two.test:5000", "docker.io/library/busybox", "localhost/x", "docker.io/library/a@sha256:" + strings.Repeat("a", 64), "",
	}
	var lines []string
	for _, scope := range scopes {
		lines = append(lines, fmt.Sprintf("%q: %s", scope, accept))
	}
	p := read(t, `{"default": [{"type":"reject"}], "transports": {"dir": {"/": `+accept+`}, "docker": {`+strings.Join(lines, ",")+`}}}`)
	for ref, want := range map[string]string{
		"reg.example.com:5000/team/app:v1":              "docker:reg.example.com:5000/team/app:v1",
		"reg.example.com:5000/team/app:v2":              "docker:reg.example.com:5000/team/app",
		"reg.example.com:5000/team/app-b:v1":            "docker:reg.example.com:5000/team",
		"reg.example.com:5000/teams/app":                "docker:reg.example.com:5000",
		"reg.example.com/team/app:v1":                   "docker:*.example.com",
		"reg.example.com:5001/team/app:v1":              "docker:*.example.com",
		"a.b.example.com/app":                           "docker:*.example.com",
		"example.com/app":                               "docker:*.com",
		"Reg.Example.COM:5000/team/app:v1":              "docker:reg.example.com:5000/team/app:v1",
		"A.B.Example.com/app":                           "docker:*.example.com",
		"up.test/team/app":                              "docker:up.test/team",
		"UP.test:443/team/app":                          "docker:up.test/team",
		"two.test:443/app:V1":                           "docker:two.test",
		"two.test:5000/app":                             "docker:two.test:5000",
		"two.test:4430/app":                             "docker:",
		"busybox":                                       "docker:docker.io/library/busybox",
		"alpine":                                        "docker:",
		"a@sha256:" + strings.Repeat("a", 64):           "docker:docker.io/library/a@sha256:" + strings.Repeat("a", 64),
		"busybox:1.2@sha256:" + strings.Repeat("b", 64): "docker:docker.io/library/busybox",
	} {
		if rules := p.For(named(t, ref)); rules.Scope != want {
			t.Errorf("%s: scope %q, want %q", ref, rules.Scope, want)
		}
	}
	if rules := p.Nameless(); rules.Scope != "default" {
		t.Errorf("without a name: %+v", rules)
	}
}

func TestInvalidFilesAreRefused(t *testing.T) {
	const reject = `[{"type":"reject"}]`
	in := func(requirement string) string { return `{"default": [` + requirement + `]}` }
	docker := func(scope string) string {
		return fmt.Sprintf(`{"default": %s, "transports": {"docker": {%q: %s}}}`, reject, scope, reject)
	}
	for text, want := range map[string]string{
		``:                             "ends too early",
		`{"default"`:                   "is not JSON",
		`[]`:                           "want an object",
		`{}`:                           "field default: is missing",
		`{"default": []}`:              "field default: is empty",
		`{"default": ` + reject + `}x`: "more than one",
		`{"default": ` + reject + `, "default": ` + reject + `}`:                                                            "field default: is there twice",
		`{"default": ` + reject + `, "extra": 1}`:                                                                           "field extra: is unknown",
		in(`{"type":"reject","keyPath":"/x"}`):                                                                              "field default[0].keyPath: a requirement of type reject does not have it",
		in(`{"type":"rejects"}`):                                                                                            `field default[0].type: "rejects"`,
		in(`{"type":"sigstoreSigned"}`):                                                                                     "exactly one of keyPath",
		in(`{"type":"sigstoreSigned","keyPath":"/a","keyData":"eA=="}`):                                                     "contradicts keyPath",
		in(`{"type":"sigstoreSigned","keyPath":"a"}`):                                                                       "want an absolute path",
		in(`{"type":"sigstoreSigned","keyPaths":[]}`):                                                                       "keyPaths: is empty",
		in(`{"type":"sigstoreSigned","keyData":"%"}`):                                                                       "want base64",
		in(`{"type":"sigstoreSigned","keyPath":"/a","signedIdentity":{"type":"any"}}`):                                      `signedIdentity.type: "any"`,
		in(`{"type":"sigstoreSigned","keyPath":"/a","signedIdentity":{"type":"matchExact","prefix":"a"}}`):                  "and no others",
		in(`{"type":"sigstoreSigned","keyPath":"/a","signedIdentity":{"type":"remapIdentity","prefix":"a"}}`):               "needs signedPrefix",
		in(`{"type":"sigstoreSigned","keyPath":"/a","signedIdentity":{"type":"exactReference","dockerReference":"a.b/c"}}`): "want a tag or a digest",
		in(`{"type":"sigstoreSigned","fulcio":{"caPath":"/a","oidcIssuer":"i","subjectEmail":"e"}}`):                        "needs rekorPublicKeyPath",
		in(`{"type":"sigstoreSigned","fulcio":{"caPath":"/a"},"rekorPublicKeyPath":"/r"}`):                                  "oidcIssuer and subjectEmail",
		in(`{"type":"sigstoreSigned","pki":{"subjectEmail":"e"}}`):                                                          "pki: want one of caRootsPath",
		in(`{"type":"sigstoreSigned","pki":{"caRootsPath":"/a"}}`):                                                          "subjectEmail or subjectHostname",
		in(`{"type":"sigstoreSigned","pki":{"caRootsPath":"/a","subjectEmail":"e","oidcIssuer":"i"}}`):                      "pki.oidcIssuer: is unknown",
		in(`{"type":"sigstoreSigned","pki":{"caRootsPath":"/a","subjectEmail":"e"},"rekorPublicKeyPath":"/r"}`):             "a requirement with pki does not have it",
		in(`{"type":"signedBy","keyType":"X","keyPath":"/a"}`):                                                              "want GPGKeys",
		docker("busybox"):      "docker.io/library/busybox",
		docker("example*.com"): "matches nothing",
		fmt.Sprintf(`{"default": %[1]s, "transports": {"docker": {"r.test/a": %[1]s, "R.test:443/a": %[1]s}}}`, reject): "field transports.docker.R.test:443/a: is there twice",
		docker("*.example.com:5000"):    "without a port",
		docker("example.com/"):          "ends with a slash",
		docker("https://example.com/a"): "matches nothing",
		docker("example.com/App"):       "matches nothing",
	} {
		file := write(t, "policy.json", []byte(text))
		_, err := Read(file)
		if err == nil || !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("a missing file was read")
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("a directory was read")
	}
}

// FuzzPolicy: an accepted file has a default that decides.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte(`{"default": [{"type":"reject"}], "transports": {"docker": {"a.b/c": [{"type":"sigstoreSigned","keyData":"eA=="}]}}}`))
	f.Add([]byte(`{"default": [{"type":"insecureAcceptAnything"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &Policy{}
		if p.parse(data) == nil && len(p.Nameless().requirements) == 0 {
			t.Errorf("%q has no default", data)
		}
	})
}

// FuzzSignature: no bytes of a registry are an accepted signature, and none panics.
func FuzzSignature(f *testing.F) {
	s := imagetest.NewSigner()
	dgst := digest.FromString("x")
	f.Add(imagetest.Claim("r.test/a", dgst), "AA==", "", "", []byte(nil))
	f.Add([]byte{}, "", "-----BEGIN", `{"Payload":{"body":"e30="}}`, s.Bundle("", dgst, signPredicate))
	other := imagetest.NewSigner()
	r := requirement{kind: SigstoreSigned, keys: source{field: "keyData", datas: [][]byte{other.PublicKey()}}, identity: identity{kind: matchRepository}}
	logged := r
	logged.rekor = r.keys
	image := Image{Digests: []digest.Digest{dgst}, Unnamed: true}
	f.Fuzz(func(t *testing.T, payload []byte, signature, cert, rekor string, bundle []byte) {
		sig := []Signature{{Payload: payload, Signature: signature, Certificate: cert, Rekor: rekor, Bundle: bundle}}
		if r.meets(image, sig) == nil || logged.meets(image, sig) == nil {
			t.Error("accepted")
		}
	})
}

// keyed is a policy with one key and an identity.
func keyed(t *testing.T, s *imagetest.Signer, identity string) *Policy {
	t.Helper()
	if identity != "" {
		identity = `, "signedIdentity": ` + identity
	}
	return read(t, fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "keyPath": %q%s}]}`, write(t, "key.pub", s.PublicKey()), identity))
}

func claim(s *imagetest.Signer, name string, dgst digest.Digest) Signature {
	payload := imagetest.Claim(name, dgst)
	return Signature{Place: "sig", Payload: payload, Signature: base64.StdEncoding.EncodeToString(s.Sign(payload))}
}

func TestIdentities(t *testing.T) {
	s, dgst := imagetest.NewSigner(), digest.FromString("image")
	byDigest := "r.test/a/b@" + dgst.String()
	for _, test := range []struct {
		identity, ref, signed string
		accepted              bool
	}{
		{"", "r.test/a/b:1", "r.test/a/b:1", true},
		{"", "r.test/a/b:1", "r.test/a/b:2", false},
		{"", "r.test/a/b:1", "r.test/a/b", false},
		{"", byDigest, "r.test/a/b:2", true},
		{"", byDigest, "r.test/a/c:2", false},
		{`{"type":"matchExact"}`, byDigest, "r.test/a/b:2", false},
		{`{"type":"matchExact"}`, "r.test/a/b:1", "r.test/a/b:1", true},
		{`{"type":"matchRepository"}`, "r.test/a/b:1", "r.test/a/b", true},
		{`{"type":"matchRepository"}`, "r.test/a/b:1", "r.test/a/c", false},
		{`{"type":"matchRepository"}`, "r.test/a/b:1", "", false},
		{`{"type":"exactRepository","dockerRepository":"v.test/b"}`, "r.test/a/b:1", "v.test/b:9", true},
		{`{"type":"exactRepository","dockerRepository":"v.test/b"}`, "r.test/a/b:1", "r.test/a/b:1", false},
		{`{"type":"exactReference","dockerReference":"v.test/b:9"}`, "r.test/a/b:1", "v.test/b:9", true},
		{`{"type":"exactReference","dockerReference":"v.test/b:9"}`, "r.test/a/b:1", "v.test/b:8", false},
		{`{"type":"remapIdentity","prefix":"r.test/a","signedPrefix":"v.test/z"}`, "r.test/a/b:1", "v.test/z/b:1", true},
		{`{"type":"remapIdentity","prefix":"r.test/a","signedPrefix":"v.test/z"}`, "r.test/a/b:1", "r.test/a/b:1", false},
		{`{"type":"remapIdentity","prefix":"r.test","signedPrefix":"v.test"}`, "r.test:5000/b:1", "r.test:5000/b:1", true},
		{`{"type":"remapIdentity","prefix":"r.test/a","signedPrefix":"v.test"}`, "r.test/ab/c:1", "r.test/ab/c:1", true},
		{`{"type":"remapIdentity","prefix":"r.test/a","signedPrefix":"v.test"}`, byDigest, "v.test/b:7", true},
	} {
		ref := named(t, test.ref)
		err := keyed(t, s, test.identity).For(ref).Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{claim(s, test.signed, dgst)})
		if (err == nil) != test.accepted {
			t.Errorf("%s: %s signed as %q: %v", test.identity, test.ref, test.signed, err)
		}
	}
}

func TestHostileSignatures(t *testing.T) {
	s, other, dgst := imagetest.NewSigner(), imagetest.NewSigner(), digest.FromString("image")
	ref := named(t, "r.test/app:1")
	rules := keyed(t, s, `{"type":"matchRepository"}`).For(ref)
	image := Image{Name: ref, Digests: []digest.Digest{dgst}}
	good := claim(s, "r.test/app", dgst)
	changed, cut := good, good
	changed.Payload = imagetest.Claim("r.test/app", digest.FromString("another"))
	cut.Signature = cut.Signature[:len(cut.Signature)/2]
	kind := Signature{Payload: []byte(strings.Replace(string(good.Payload), "container image signature", "blob", 1))}
	kind.Signature = base64.StdEncoding.EncodeToString(s.Sign(kind.Payload))
	bundle := func(by *imagetest.Signer, name string, d digest.Digest, predicate string) Signature {
		return Signature{Bundle: by.Bundle(name, d, predicate)}
	}
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":                         {good, ""},
		"another key":                  {claim(other, "r.test/app", dgst), "not made with a trusted key"},
		"another digest":               {claim(s, "r.test/app", digest.FromString("another")), "not of this image"},
		"changed payload":              {changed, "not made with a trusted key"},
		"truncated":                    {cut, "it "},
		"no signature":                 {Signature{Payload: good.Payload}, "no signature in base64"},
		"another type":                 {kind, "has the type"},
		"bundle":                       {bundle(s, "r.test/app", dgst, signPredicate), ""},
		"bundle of another key":        {bundle(other, "r.test/app", dgst, signPredicate), "not made with a trusted key"},
		"bundle of another repository": {bundle(s, "r.test/other", dgst, signPredicate), "wants r.test/app"},
		"bundle without a name":        {bundle(s, "", dgst, signPredicate), "names no repository"},
		"bundle of another digest":     {bundle(s, "r.test/app", digest.FromString("another"), signPredicate), "not of this image"},
		"attestation":                  {bundle(s, "r.test/app", dgst, "https://slsa.dev/provenance/v1"), "does not sign it"},
	} {
		err := rules.Check(image, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if err := rules.Check(image, nil); err == nil || !strings.Contains(err.Error(), "no signature was found") {
		t.Errorf("unsigned: %v", err)
	}
	if err := rules.Check(image, []Signature{claim(other, "r.test/app", dgst), good}); err != nil {
		t.Errorf("one good signature of two: %v", err)
	}
	image.Unnamed = true
	if err := rules.Check(image, []Signature{bundle(s, "", dgst, signPredicate)}); err != nil {
		t.Errorf("a bundle without a name where that is allowed: %v", err)
	}
}

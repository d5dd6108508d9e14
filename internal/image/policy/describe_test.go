package policy

import (
	"encoding/base64"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
)

func TestDescribe(t *testing.T) {
	s := imagetest.NewSigner()
	key, ringFile := write(t, "team.pub", s.PublicKey()), write(t, "team.gpg", imagetest.NewGPG().PublicKey())
	for text, want := range map[string]struct{ means, key, certificate, identity, fault string }{
		`{"type":"insecureAcceptAnything"}`: {means: "any image is accepted"},
		`{"type":"reject"}`:                 {means: "no image is accepted: images of this scope are rejected"},
		`{"type":"signedBy","keyType":"GPGKeys","keyPath":"` + ringFile + `"}`: {
			means: "a signature of one of the keys", key: ringFile + " (GPG ", identity: "matchRepoDigestOrExact: r.test/a/b:1",
		},
		`{"type":"sigstoreSigned","pki":{"caRootsPath":"/absent/ca","subjectEmail":"me@test","subjectHostname":"h.test"}}`: {
			means: "valid at the time of the check", certificate: "for me@test and the host h.test, of the authority in /absent/ca",
			identity: "matchRepoDigestOrExact: r.test/a/b:1", fault: "pki.caRootsPath",
		},
		`{"type":"sigstoreSigned","keyPath":"` + key + `"}`: {
			means: "a signature of one of the keys", key: key + " (ECDSA P-256, SHA-256 ", identity: "matchRepoDigestOrExact: r.test/a/b:1",
		},
		`{"type":"sigstoreSigned","keyPath":"` + key + `","signedIdentity":{"type":"matchRepository"}}`: {
			means: "a signature of one of the keys", key: key, identity: "matchRepository: the repository r.test/a/b",
		},
		`{"type":"sigstoreSigned","keyPath":"/absent/key.pub"}`: {
			means: "a signature of one of the keys", identity: "matchRepoDigestOrExact: r.test/a/b:1", fault: "keyPath: stat /absent/key.pub",
		},
		`{"type":"sigstoreSigned","rekorPublicKeyPath":"` + key + `","fulcio":{"caPath":"/absent/ca","oidcIssuer":"https://issuer","subjectEmail":"me@test"}}`: {
			means: "a signature of a certificate", certificate: "for me@test, vouched for by https://issuer, of the authority in /absent/ca",
			identity: "matchRepoDigestOrExact: r.test/a/b:1", fault: "fulcio.caPath",
		},
	} {
		list := read(t, `{"default": [`+text+`]}`).For(named(t, "r.test/a/b:1")).Describe(named(t, "r.test/a/b:1"))
		if len(list) != 1 {
			t.Fatalf("%s: %+v", text, list)
		}
		got := list[0]
		if !strings.Contains(got.Means, want.means) || !strings.HasPrefix(strings.Join(got.Keys, ""), want.key) || (want.key == "") != (len(got.Keys) == 0) ||
			got.Certificate != want.certificate || got.Identity != want.identity || !strings.HasPrefix(got.Fault, want.fault) || (want.fault == "") != (got.Fault == "") {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	if list := read(t, `{"default": [{"type":"sigstoreSigned","keyPath":"`+key+`"}]}`).Nameless().Describe(nil); list[0].Identity != "matchRepoDigestOrExact: "+noName {
		t.Errorf("without a name: %+v", list)
	}
	data := base64.StdEncoding.EncodeToString(s.PublicKey())
	if list := read(t, `{"default": [{"type":"sigstoreSigned","keyData":"`+data+`"}]}`).Nameless().Describe(nil); !strings.HasPrefix(list[0].Keys[0], "keyData (ECDSA") {
		t.Errorf("with the key in the file: %+v", list)
	}
}

func TestExplainSignatures(t *testing.T) {
	s, other, dgst := imagetest.NewSigner(), imagetest.NewSigner(), digest.FromString("image")
	ref := named(t, "r.test/app:1")
	image := Image{Name: ref, Digests: []digest.Digest{dgst}}
	signatures := []Signature{claim(other, "r.test/app", dgst), claim(s, "r.test/app", dgst), {Place: "x", Fault: "too large"}}
	got := keyed(t, s, `{"type":"matchRepository"}`).For(ref).Explain(image, signatures)
	if len(got) != 3 || got[0] != "it was not made with a trusted key" || got[1] != "" || got[2] != "too large" {
		t.Errorf("%q", got)
	}
	got = read(t, `{"default": [{"type":"sigstoreSigned","keyPath":"`+filepath.Join(t.TempDir(), "absent")+`"}]}`).For(ref).Explain(image, signatures)
	if !strings.HasPrefix(got[1], "keyPath: ") {
		t.Errorf("without a key: %q", got)
	}
}

// TestShownSignatures: what is kept of an image are the signatures that count, whatever else is beside them.
func TestShownSignatures(t *testing.T) {
	first, second, other, dgst := imagetest.NewSigner(), imagetest.NewSigner(), imagetest.NewSigner(), digest.FromString("image")
	ref := named(t, "r.test/app:1")
	image := Image{Name: ref, Digests: []digest.Digest{dgst}}
	one := func(s *imagetest.Signer) string {
		return `{"type":"sigstoreSigned","keyPath":"` + write(t, "key.pub", s.PublicKey()) + `","signedIdentity":{"type":"matchRepository"}}`
	}
	rules := read(t, `{"default": [`+one(first)+`, {"type":"insecureAcceptAnything"}, `+one(second)+`, `+one(first)+`]}`).For(ref)
	all := []Signature{
		{Place: "x", Fault: "too large"},
		claim(other, "r.test/app", dgst), claim(first, "r.test/app", digest.FromString("another")),
		claim(second, "r.test/app", dgst), claim(first, "r.test/app", dgst), claim(first, "r.test/app", dgst),
	}
	got := rules.Shown(image, all)
	if len(got) != 2 || !got[0].Equal(&all[4]) || !got[1].Equal(&all[3]) {
		t.Errorf("%+v show that the image may be used", got)
	}
	if err := rules.Check(image, got); err != nil {
		t.Errorf("they do not suffice: %v", err)
	}
	if got := rules.Shown(image, all[:3]); len(got) != 0 {
		t.Errorf("%+v show nothing", got)
	}
}

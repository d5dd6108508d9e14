package policy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// TestCurves: a key of ECDSA signs with SHA-256, or with the hash of its own size, which the log records, and a curve that is too small signs
// nothing.
func TestCurves(t *testing.T) {
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	payload := imagetest.Claim("r.test/app", dgst)
	k := keyless.New()
	rekor := write(t, "rekor.pub", k.Rekor.PublicKey())
	for _, test := range []struct {
		curve elliptic.Curve
		hash  crypto.Hash
		want  string
	}{
		{elliptic.P224(), crypto.SHA256, "key.pub: is a key of ECDSA with the curve P-224"},
		{elliptic.P256(), crypto.SHA256, ""},
		{elliptic.P256(), crypto.SHA384, "not made with a trusted key"},
		{elliptic.P384(), crypto.SHA256, ""},
		{elliptic.P384(), crypto.SHA384, ""},
		{elliptic.P384(), crypto.SHA512, "not made with a trusted key"},
		{elliptic.P521(), crypto.SHA256, ""},
		{elliptic.P521(), crypto.SHA384, "not made with a trusted key"},
		{elliptic.P521(), crypto.SHA512, ""},
	} {
		key, err := ecdsa.GenerateKey(test.curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
		file := write(t, "key.pub", public)
		signature, err := key.Sign(rand.Reader, keyless.Sum(test.hash, payload), test.hash)
		if err != nil {
			t.Fatal(err)
		}
		s := Signature{Payload: payload, Signature: base64.StdEncoding.EncodeToString(signature)}
		s.Rekor = k.AnnotationOf(keyless.HashedRecord(test.hash, signature, payload, public), k.Now)
		for _, log := range []string{"", fmt.Sprintf(`"rekorPublicKeyPath": %q, `, rekor)} {
			rules := read(t, fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "keyPath": %q, %s"signedIdentity": {"type": "matchRepository"}}]}`, file, log)).For(ref)
			err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{s})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s with %s, %s: %v, want %q", test.curve.Params().Name, test.hash, log, err, test.want)
			}
		}
	}
}

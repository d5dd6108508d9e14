package policy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
)

func TestSimpleSignatures(t *testing.T) {
	key, other, old := imagetest.NewGPG(), imagetest.NewGPG(), imagetest.NewGPGFor(23*time.Hour+30*time.Minute)
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	image := Image{Name: ref, Digests: []digest.Digest{dgst}}
	files := []string{write(t, "key.gpg", key.PublicKey()), write(t, "old.gpg", old.PublicKey())}
	rules := read(t, fmt.Sprintf(`{"default": [{"type":"signedBy", "keyType": "GPGKeys", "keyPaths": [%q, %q]}]}`, files[0], files[1])).For(ref)
	signed := func(by *imagetest.GPG, name string, d digest.Digest) Signature {
		return Signature{Simple: by.Sign(imagetest.SimpleClaim(name, d), 0)}
	}
	good := signed(key, "r.test/app:1", dgst)
	changed := Signature{Simple: bytes.Replace(good.Simple, []byte("r.test/app:1"), []byte("r.test/app:2"), 1)}
	huge := imagetest.SimpleClaim("r.test/app:1", dgst)
	huge = append(huge, bytes.Repeat([]byte(" "), maxClaim)...)
	// Packets that every reader skips, before and after what is signed.
	filling := bytes.Repeat([]byte("\xca\x03PGP"), maxMessage/5)
	zipped := imagetest.Compressed(good.Simple)
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":                {good, ""},
		"lasting":             {Signature{Simple: key.Sign(imagetest.SimpleClaim("r.test/app:1", dgst), 2*time.Hour)}, ""},
		"another key":         {signed(other, "r.test/app:1", dgst), "which is not trusted"},
		"another digest":      {signed(key, "r.test/app:1", digest.FromString("another")), "not of this image"},
		"another tag":         {signed(key, "r.test/app:2", dgst), "wants r.test/app:1"},
		"another type":        {Signature{Simple: key.Sign(imagetest.Claim("r.test/app:1", dgst), 0)}, "has the type"},
		"no claim":            {Signature{Simple: key.Sign([]byte("text"), 0)}, "not a claim"},
		"changed":             {changed, "does not count"},
		"cut":                 {Signature{Simple: good.Simple[:len(good.Simple)/2]}, "it is not a message of GPG"},
		"huge":                {Signature{Simple: key.Sign(huge, 0)}, "more than"},
		"expired":             {Signature{Simple: key.Sign(imagetest.SimpleClaim("r.test/app:1", dgst), time.Minute)}, "does not count"},
		"of an expired key":   {signed(old, "r.test/app:1", dgst), "does not count"},
		"compressed":          {Signature{Simple: zipped}, ""},
		"compressed twice":    {Signature{Simple: imagetest.Compressed(zipped)}, "compressed as a whole, once"},
		"filled before":       {Signature{Simple: imagetest.Compressed(filling, good.Simple)}, "decompressed"},
		"filled after":        {Signature{Simple: imagetest.Compressed(good.Simple, filling)}, "decompressed"},
		"filled, as it is":    {Signature{Simple: slices.Concat(filling, good.Simple)}, "more than"},
		"filled in parts":     {Signature{Simple: slices.Concat(imagetest.Compressed(filling[:maxClaim/5*5]), zipped)}, "not a message of GPG"},
		"unsigned":            {Signature{Simple: imagetest.Unsigned(imagetest.SimpleClaim("r.test/app:1", dgst))}, "not a signed message"},
		"text":                {Signature{Simple: []byte("text")}, "not a message of GPG"},
		"a fault":             {Signature{Fault: "it has more than 5 bytes"}, "more than 5 bytes"},
		"signature of cosign": {claim(imagetest.NewSigner(), "r.test/app:1", dgst), "not of the kind that signedBy wants"},
	} {
		err := rules.Check(image, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if got := rules.Shown(image, []Signature{changed, good}); len(got) != 1 || !got[0].Equal(&good) {
		t.Errorf("%d signatures are kept", len(got))
	}
	armored := read(t, fmt.Sprintf(`{"default": [{"type":"signedBy", "keyType": "GPGKeys", "keyPath": %q}]}`, write(t, "key.asc", key.ArmoredKey()))).For(ref)
	if err := armored.Check(image, []Signature{good}); err != nil {
		t.Errorf("with a key in armor: %v", err)
	}
	cosign := keyed(t, imagetest.NewSigner(), "").For(ref)
	if err := cosign.Check(image, []Signature{good}); err == nil || !strings.Contains(err.Error(), "not of the kind that sigstoreSigned wants") {
		t.Errorf("for sigstoreSigned: %v", err)
	}
	for name, data := range map[string]string{"empty": "", "text": "text", "armor": "-----BEGIN PGP PUBLIC KEY BLOCK-----\n"} {
		wrong := read(t, fmt.Sprintf(`{"default": [{"type":"signedBy", "keyType": "GPGKeys", "keyPath": %q}]}`, write(t, "key.gpg", []byte(data)))).For(ref)
		if err := wrong.Check(image, []Signature{good}); err == nil || !strings.Contains(err.Error(), "is not a keyring of GPG") {
			t.Errorf("a keyring that is none, %s: %v", name, err)
		}
	}
}

// FuzzSimple: no message is one of a key that made none, and none panics.
func FuzzSimple(f *testing.F) {
	key, other := imagetest.NewGPG(), imagetest.NewGPG()
	s := source{field: "keyData", datas: [][]byte{key.PublicKey()}}
	ring, err := s.ring()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(other.Sign([]byte("claim"), 0))
	f.Add(imagetest.Unsigned([]byte("claim")))
	f.Add(imagetest.Compressed(other.Sign([]byte("claim"), 0)))
	f.Add(other.ArmoredKey())
	f.Fuzz(func(t *testing.T, data []byte) {
		if claim, err := ring.open(data); err == nil {
			t.Errorf("%q is accepted", claim)
		}
	})
}

package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

func TestKeylessBundles(t *testing.T) {
	const email, issuer = "ci@example.com", "https://issuer.example"
	k, other := keyless.New(), keyless.New()
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	rules := read(t, policyFor(t, k, email, issuer)).For(ref)
	within := k.Now.Add(time.Minute)
	// made is a bundle for an identity, of which change changes a part.
	made := func(email, issuer string, at time.Time, change func(*keyless.Parts)) Signature {
		key, cert := k.Issue(email, issuer)
		p := k.Bundle(keyless.Statement("r.test/app", dgst), key, cert, at)
		if change != nil {
			change(p)
		}
		return Signature{Bundle: p.JSON()}
	}
	changed := func(change func(*keyless.Parts)) Signature { return made(email, issuer, within, change) }
	of := func(payload []byte) Signature {
		key, cert := k.Issue(email, issuer)
		return Signature{Bundle: k.Bundle(payload, key, cert, within).JSON()}
	}
	foreignKey, foreignCert := other.Issue(email, issuer)
	// again is the record of a bundle in another log.
	again := func(p *keyless.Parts, log *keyless.Keyless) map[string]any {
		return log.Record(p.Records[0]["canonicalizedBody"].([]byte), within)
	}
	withoutPromise := func(p *keyless.Parts) []map[string]any {
		record := again(p, k)
		delete(record, "inclusionPromise")
		return []map[string]any{record}
	}
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":                 {changed(nil), ""},
		"numbers":              {changed(func(p *keyless.Parts) { p.Records[0]["logIndex"] = 7 }), ""},
		"another person":       {made("eve@example.com", issuer, within, nil), "want ci@example.com"},
		"a longer name":        {made("ci@example.com.evil.example", issuer, within, nil), "want ci@example.com"},
		"another issuer":       {made(email, issuer+"/", within, nil), "identity of"},
		"expired":              {made(email, issuer, k.Now.Add(11*time.Minute), nil), "not valid at"},
		"before it":            {made(email, issuer, k.Now.Add(-time.Minute), nil), "not valid at"},
		"another authority":    {Signature{Bundle: k.Bundle(keyless.Statement("r.test/app", dgst), foreignKey, foreignCert, within).JSON()}, "not valid at"},
		"another log":          {Signature{Bundle: other.Bundle(keyless.Statement("r.test/app", dgst), foreignKey, foreignCert, within).JSON()}, "not signed by a trusted log"},
		"not logged":           {changed(func(p *keyless.Parts) { p.Records = nil }), "0 records"},
		"another log before":   {changed(func(p *keyless.Parts) { p.Records = append([]map[string]any{again(p, other)}, p.Records...) }), ""},
		"another log after":    {changed(func(p *keyless.Parts) { p.Records = append(p.Records, again(p, other)) }), ""},
		"two other logs":       {changed(func(p *keyless.Parts) { p.Records = []map[string]any{again(p, other), again(p, other)} }), "trusted log)"},
		"no time, then a time": {changed(func(p *keyless.Parts) { p.Records = append(withoutPromise(p), p.Records...) }), ""},
		"33 records":           {changed(func(p *keyless.Parts) { p.Records = slices.Repeat(p.Records, 33) }), "33 records"},
		"another version":      {changed(func(p *keyless.Parts) { p.MediaType = "application/vnd.dev.sigstore.bundle.v0.4+json" }), "not version 0.3"},
		"the older type":       {changed(func(p *keyless.Parts) { p.MediaType = "application/vnd.dev.sigstore.bundle+json;version=0.3" }), ""},
		"a newer record": {changed(func(p *keyless.Parts) {
			body := bytes.Replace(p.Records[0]["canonicalizedBody"].([]byte), []byte("0.0.1"), []byte("0.0.2"), 1)
			p.Records[0] = k.Record(body, within)
		}), `version "0.0.2"`},
		"no time":              {changed(func(p *keyless.Parts) { delete(p.Records[0], "inclusionPromise") }), "no signed time"},
		"changed time":         {changed(func(p *keyless.Parts) { p.Records[0]["integratedTime"] = fmt.Sprint(within.Unix() + 1) }), "not signed by a trusted log"},
		"a time that is none":  {changed(func(p *keyless.Parts) { p.Records[0]["integratedTime"] = "1e3" }), "not Rekor's"},
		"no proof":             {changed(func(p *keyless.Parts) { delete(p.Records[0], "inclusionProof") }), "no proof of inclusion"},
		"proof of another one": {changed(func(p *keyless.Parts) { p.Field("inclusionProof")["logIndex"] = "3" }), "does not lead to the root"},
		"index of no record":   {changed(func(p *keyless.Parts) { p.Field("inclusionProof")["logIndex"] = "-1" }), "does not lead to the root"},
		"short proof":          {changed(func(p *keyless.Parts) { p.Field("inclusionProof")["hashes"] = [][]byte{keyless.LeafOf(nil)} }), "does not lead to the root"},
		"short hash":           {changed(func(p *keyless.Parts) { p.Field("inclusionProof")["hashes"] = [][]byte{{1}} }), "a hash of 1 bytes"},
		"checkpoint of another log": {changed(func(p *keyless.Parts) {
			p.Field("inclusionProof")["checkpoint"] = map[string]any{"envelope": other.Checkpoint(5, keyless.LeafOf(nil))}
		}), "no checkpoint that the log has signed"},
		"changed checkpoint": {changed(func(p *keyless.Parts) {
			c := p.Field("inclusionProof")["checkpoint"].(map[string]any)
			c["envelope"] = strings.Replace(c["envelope"].(string), "\n5\n", "\n6\n", 1)
		}), "no checkpoint that the log has signed"},
		"checkpoint that is none": {changed(func(p *keyless.Parts) {
			p.Field("inclusionProof")["checkpoint"] = map[string]any{"envelope": k.Checkpoint(-1, keyless.LeafOf(nil))}
		}), "does not lead to the root"},
		"another record":      {changed(func(p *keyless.Parts) { p.Records[0] = k.Record(bodyOf(t, changed(nil)), within) }), "another signature"},
		"another type":        {changed(func(p *keyless.Parts) { p.Records[0] = k.Record([]byte(`{"kind":"hashedrekord"}`), within) }), `is a "hashedrekord"`},
		"changed payload":     {changed(func(p *keyless.Parts) { p.Payload = keyless.Statement("r.test/app", digest.FromString("another")) }), "another payload"},
		"another certificate": {changed(func(p *keyless.Parts) { p.Certificate = foreignCert }), "another certificate"},
		"no certificate":      {changed(func(p *keyless.Parts) { p.Certificate = nil }), "another certificate"},
		"another digest":      {of(keyless.Statement("r.test/app", digest.FromString("another"))), "not of this image"},
		"another repository":  {of(keyless.Statement("r.test/other", dgst)), "wants r.test/app"},
		"without a name":      {of(keyless.Statement("", dgst)), "names no repository"},
	} {
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}, Unnamed: true}, []Signature{of(keyless.Statement("", dgst))}); err != nil {
		t.Errorf("without a name where that is allowed: %v", err)
	}
}

// TestLoggedBundles: a bundle of a key must be in the log if the policy names a log.
func TestLoggedBundles(t *testing.T) {
	k, key, other := keyless.New(), imagetest.NewSigner(), imagetest.NewSigner()
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	rules := read(t, fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "keyPath": %q, "rekorPublicKeyPath": %q, "signedIdentity": {"type": "matchRepository"}}]}`,
		write(t, "key.pub", key.PublicKey()), write(t, "rekor.pub", k.Rekor.PublicKey()))).For(ref)
	payload := keyless.Statement("r.test/app", dgst)
	foreign := other.Sign(keyless.Encoded(statementType, payload))
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":              {Signature{Bundle: k.Bundle(payload, key, nil, k.Now).JSON()}, ""},
		"another key":       {Signature{Bundle: k.Bundle(payload, other, nil, k.Now).JSON()}, "a key that is not trusted"},
		"made with another": {Signature{Bundle: k.BundleOf(payload, foreign, nil, key.PublicKey(), k.Now).JSON()}, "not made with a trusted key"},
		"not logged":        {Signature{Bundle: key.Bundle("r.test/app", dgst, signPredicate)}, "0 records"},
	} {
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestPromiseAndProofAreOfOneLog: the log that has promised to record a signature must show that it has.
func TestPromiseAndProofAreOfOneLog(t *testing.T) {
	k, second, key := keyless.New(), keyless.New(), imagetest.NewSigner()
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	rules := read(t, fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "keyPath": %q, "rekorPublicKeyPaths": [%q, %q], "signedIdentity": {"type": "matchRepository"}}]}`,
		write(t, "key.pub", key.PublicKey()), write(t, "rekor.pub", k.Rekor.PublicKey()), write(t, "second.pub", second.Rekor.PublicKey()))).For(ref)
	for _, log := range []*keyless.Keyless{k, second} {
		p := log.Bundle(keyless.Statement("r.test/app", dgst), key, nil, k.Now)
		if err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{{Bundle: p.JSON()}}); err != nil {
			t.Errorf("a record of one log: %v", err)
		}
	}
	p := k.Bundle(keyless.Statement("r.test/app", dgst), key, nil, k.Now)
	proof := p.Field("inclusionProof")
	proof["checkpoint"] = map[string]any{"envelope": second.Checkpoint(5, proof["rootHash"].([]byte))}
	err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{{Bundle: p.JSON()}})
	if err == nil || !strings.Contains(err.Error(), "no checkpoint that the log has signed") {
		t.Errorf("a promise of one log with a proof of another: %v", err)
	}
}

// bodyOf is the record of a bundle.
func bodyOf(t *testing.T, s Signature) []byte {
	t.Helper()
	var b bundle
	if err := json.Unmarshal(s.Bundle, &b); err != nil {
		t.Fatal(err)
	}
	return b.Material.Records[0].CanonicalizedBody
}

// FuzzBundleRecord: no bytes are a record of the log, and none panics, also where the log has signed the tree.
func FuzzBundleRecord(f *testing.F) {
	k := keyless.New()
	trust := &trust{rekor: []namedKey{{"log", &k.Rekor.Key().PublicKey}}}
	f.Add([]byte(`{}`), []byte("body"), int64(1), int64(0))
	f.Add([]byte(`{"verificationMaterial":{"tlogEntries":[{"logIndex":"1","inclusionPromise":{"signedEntryTimestamp":"AA=="},"inclusionProof":{"checkpoint":{"envelope":"x"}}}]}}`), []byte{}, int64(-1), int64(1)<<62)
	f.Fuzz(func(t *testing.T, data, body []byte, size, index int64) {
		var b bundle
		if json.Unmarshal(data, &b) == nil {
			for i := range b.Material.Records {
				r, err := b.Material.Records[i].read()
				if err != nil {
					continue
				}
				if _, err := trust.readEntry(r); err == nil {
					t.Error("a record that the log has not signed is accepted")
				}
			}
		}
		p := &proof{index: index, checkpoint: k.Checkpoint(int(size), make([]byte, 32))}
		if p.includes(body, trust.rekor[0]) == nil {
			t.Error("a record is in a tree whose root is zero")
		}
	})
}

package policy

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// parts are those of a bundle that a test changes.
type parts struct {
	payload, signature, certificate []byte
	// records are those of the log, in the form of the bundle.
	records []map[string]any
}

// json is the bundle, as cosign 3 writes it.
func (p *parts) json(t *testing.T) Signature {
	t.Helper()
	material := map[string]any{"tlogEntries": p.records}
	if p.certificate != nil {
		material["certificate"] = map[string]any{"rawBytes": p.certificate}
	}
	data, err := json.Marshal(map[string]any{
		"mediaType": imagetest.BundleType, "verificationMaterial": material,
		"dsseEnvelope": map[string]any{
			"payload": p.payload, "payloadType": statementType, "signatures": []any{map[string]any{"sig": p.signature, "keyid": ""}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return Signature{Bundle: data}
}

// field is a field of the record.
func (p *parts) field(name string) map[string]any { return p.records[0][name].(map[string]any) }

// statement is one that signs an image.
func statement(name string, dgst digest.Digest) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":%q,"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		name, dgst.Encoded(), signPredicate)
}

// bundle signs a statement with a key, whose certificate or public key in PEM is given, and records that in the log.
func (k *keyless) bundle(payload []byte, key *imagetest.Signer, verifier []byte, at time.Time) *parts {
	p := &parts{payload: payload, signature: key.Sign(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(statementType), statementType, len(payload), payload))}
	if block, _ := pem.Decode(verifier); block.Type == "CERTIFICATE" {
		p.certificate = block.Bytes
	}
	body := fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"dsse","spec":{"envelopeHash":{"algorithm":"sha256","value":"%x"},"payloadHash":{"algorithm":"sha256","value":"%x"},"signatures":[{"signature":%q,"verifier":%q}]}}`,
		sum([]byte("envelope")), sum(payload), base64.StdEncoding.EncodeToString(p.signature), base64.StdEncoding.EncodeToString(verifier))
	p.records = []map[string]any{k.logBundle(body, at)}
	return p
}

// logBundle records a body, as the third of five records.
func (k *keyless) logBundle(body []byte, at time.Time) map[string]any {
	id, _ := hex.DecodeString(logID)
	leaves := [][]byte{leafOf([]byte("a")), leafOf([]byte("b")), leafOf(body), leafOf([]byte("c")), leafOf([]byte("d"))}
	return map[string]any{
		"logIndex": "7", "logId": map[string]any{"keyId": id}, "integratedTime": fmt.Sprint(at.Unix()), "canonicalizedBody": body,
		"kindVersion":      map[string]any{"kind": "dsse", "version": "0.0.1"},
		"inclusionPromise": map[string]any{"signedEntryTimestamp": k.promise(base64.StdEncoding.EncodeToString(body), at)},
		"inclusionProof": map[string]any{
			"logIndex": "2", "treeSize": "5", "rootHash": rootOf(leaves), "hashes": pathOf(2, leaves),
			"checkpoint": map[string]any{"envelope": k.checkpoint(len(leaves), rootOf(leaves))},
		},
	}
}

// checkpoint is a root that the log has signed.
func (k *keyless) checkpoint(size int, root []byte) string {
	text := fmt.Sprintf("log.test - 42\n%d\n%s\n", size, base64.StdEncoding.EncodeToString(root))
	block, _ := pem.Decode(k.rekor.PublicKey())
	hash := sha256.Sum256(block.Bytes)
	return fmt.Sprintf("%s\n\u2014 log.test %s\n", text, base64.StdEncoding.EncodeToString(append(hash[:4:4], k.rekor.Sign([]byte(text))...)))
}

// The tree of RFC 6962, section 2.1.
func leafOf(data []byte) []byte { return sum(append([]byte{0}, data...)) }

func rootOf(leaves [][]byte) []byte {
	if len(leaves) == 1 {
		return leaves[0]
	}
	at := split(len(leaves))
	return sum(bytes.Join([][]byte{{1}, rootOf(leaves[:at]), rootOf(leaves[at:])}, nil))
}

func pathOf(n int, leaves [][]byte) [][]byte {
	if len(leaves) == 1 {
		return nil
	}
	at := split(len(leaves))
	if n < at {
		return append(pathOf(n, leaves[:at]), rootOf(leaves[at:]))
	}
	return append(pathOf(n-at, leaves[at:]), rootOf(leaves[:at]))
}

// split is the largest power of two below n.
func split(n int) int {
	at := 1
	for at*2 < n {
		at *= 2
	}
	return at
}

func TestKeylessBundles(t *testing.T) {
	const email, issuer = "ci@example.com", "https://issuer.example"
	k, other := newKeyless(t), newKeyless(t)
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	rules := read(t, k.policyFor(t, email, issuer)).For(ref)
	within := k.now.Add(time.Minute)
	// made is a bundle for an identity, of which change changes a part.
	made := func(email, issuer string, at time.Time, change func(*parts)) Signature {
		key, cert := k.issue(t, email, issuer)
		p := k.bundle(statement("r.test/app", dgst), key, cert, at)
		if change != nil {
			change(p)
		}
		return p.json(t)
	}
	changed := func(change func(*parts)) Signature { return made(email, issuer, within, change) }
	of := func(payload []byte) Signature {
		key, cert := k.issue(t, email, issuer)
		return k.bundle(payload, key, cert, within).json(t)
	}
	foreignKey, foreignCert := other.issue(t, email, issuer)
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":                 {changed(nil), ""},
		"numbers":              {changed(func(p *parts) { p.records[0]["logIndex"] = 7 }), ""},
		"another person":       {made("eve@example.com", issuer, within, nil), "want ci@example.com"},
		"a longer name":        {made("ci@example.com.evil.example", issuer, within, nil), "want ci@example.com"},
		"another issuer":       {made(email, issuer+"/", within, nil), "identity of"},
		"expired":              {made(email, issuer, k.now.Add(11*time.Minute), nil), "not valid at"},
		"before it":            {made(email, issuer, k.now.Add(-time.Minute), nil), "not valid at"},
		"another authority":    {k.bundle(statement("r.test/app", dgst), foreignKey, foreignCert, within).json(t), "not valid at"},
		"another log":          {other.bundle(statement("r.test/app", dgst), foreignKey, foreignCert, within).json(t), "not signed by a trusted log"},
		"not logged":           {changed(func(p *parts) { p.records = nil }), "0 records"},
		"two records":          {changed(func(p *parts) { p.records = append(p.records, p.records[0]) }), "2 records"},
		"no time":              {changed(func(p *parts) { delete(p.records[0], "inclusionPromise") }), "no signed time"},
		"changed time":         {changed(func(p *parts) { p.records[0]["integratedTime"] = fmt.Sprint(within.Unix() + 1) }), "not signed by a trusted log"},
		"a time that is none":  {changed(func(p *parts) { p.records[0]["integratedTime"] = "1e3" }), "not Rekor's"},
		"no proof":             {changed(func(p *parts) { delete(p.records[0], "inclusionProof") }), "no proof of inclusion"},
		"proof of another one": {changed(func(p *parts) { p.field("inclusionProof")["logIndex"] = "3" }), "does not lead to the root"},
		"index of no record":   {changed(func(p *parts) { p.field("inclusionProof")["logIndex"] = "-1" }), "does not lead to the root"},
		"short proof":          {changed(func(p *parts) { p.field("inclusionProof")["hashes"] = [][]byte{leafOf(nil)} }), "does not lead to the root"},
		"short hash":           {changed(func(p *parts) { p.field("inclusionProof")["hashes"] = [][]byte{{1}} }), "a hash of 1 bytes"},
		"checkpoint of another log": {changed(func(p *parts) {
			p.field("inclusionProof")["checkpoint"] = map[string]any{"envelope": other.checkpoint(5, leafOf(nil))}
		}), "no checkpoint that a trusted log has signed"},
		"changed checkpoint": {changed(func(p *parts) {
			c := p.field("inclusionProof")["checkpoint"].(map[string]any)
			c["envelope"] = strings.Replace(c["envelope"].(string), "\n5\n", "\n6\n", 1)
		}), "no checkpoint that a trusted log has signed"},
		"checkpoint that is none": {changed(func(p *parts) {
			p.field("inclusionProof")["checkpoint"] = map[string]any{"envelope": k.checkpoint(-1, leafOf(nil))}
		}), "does not lead to the root"},
		"another record":      {changed(func(p *parts) { p.records[0] = k.logBundle(bodyOf(t, changed(nil)), within) }), "another signature"},
		"another type":        {changed(func(p *parts) { p.records[0] = k.logBundle([]byte(`{"kind":"hashedrekord"}`), within) }), `is a "hashedrekord"`},
		"changed payload":     {changed(func(p *parts) { p.payload = statement("r.test/app", digest.FromString("another")) }), "another payload"},
		"another certificate": {changed(func(p *parts) { p.certificate = decoded(foreignCert) }), "another certificate"},
		"no certificate":      {changed(func(p *parts) { p.certificate = nil }), "another certificate"},
		"another digest":      {of(statement("r.test/app", digest.FromString("another"))), "not of this image"},
		"another repository":  {of(statement("r.test/other", dgst)), "wants r.test/app"},
		"without a name":      {of(statement("", dgst)), "names no repository"},
	} {
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}, Unnamed: true}, []Signature{of(statement("", dgst))}); err != nil {
		t.Errorf("without a name where that is allowed: %v", err)
	}
}

// TestLoggedBundles: a bundle of a key must be in the log if the policy names a log.
func TestLoggedBundles(t *testing.T) {
	k, key, other := newKeyless(t), imagetest.NewSigner(), imagetest.NewSigner()
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	rules := read(t, fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "keyPath": %q, "rekorPublicKeyPath": %q, "signedIdentity": {"type": "matchRepository"}}]}`,
		write(t, "key.pub", key.PublicKey()), write(t, "rekor.pub", k.rekor.PublicKey()))).For(ref)
	payload := statement("r.test/app", dgst)
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":              {k.bundle(payload, key, key.PublicKey(), k.now).json(t), ""},
		"another key":       {k.bundle(payload, other, other.PublicKey(), k.now).json(t), "a key that is not trusted"},
		"made with another": {k.bundle(payload, other, key.PublicKey(), k.now).json(t), "not made with a trusted key"},
		"not logged":        {Signature{Bundle: key.Bundle("r.test/app", dgst, signPredicate)}, "0 records"},
	} {
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
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

func decoded(cert []byte) []byte {
	block, _ := pem.Decode(cert)
	return block.Bytes
}

// FuzzBundleRecord: no bytes are a record of the log, and none panics, also where the log has signed the tree.
func FuzzBundleRecord(f *testing.F) {
	k := &keyless{rekor: imagetest.NewSigner()}
	key, err := x509.ParsePKIXPublicKey(decoded(k.rekor.PublicKey()))
	if err != nil {
		f.Fatal(err)
	}
	trust := &trust{rekor: []namedKey{{"log", key}}}
	f.Add([]byte(`{}`), []byte("body"), int64(1), int64(0))
	f.Add([]byte(`{"verificationMaterial":{"tlogEntries":[{"logIndex":"1","inclusionPromise":{"signedEntryTimestamp":"AA=="},"inclusionProof":{"checkpoint":{"envelope":"x"}}}]}}`), []byte{}, int64(-1), int64(1)<<62)
	f.Fuzz(func(t *testing.T, data, body []byte, size, index int64) {
		var b bundle
		if json.Unmarshal(data, &b) == nil {
			if r, err := b.record(); err == nil {
				if _, err := trust.readEntry(r); err == nil {
					t.Error("a record that the log has not signed is accepted")
				}
			}
		}
		p := &proof{index: index, checkpoint: k.checkpoint(int(size), make([]byte, 32))}
		if trust.included(body, p) == nil {
			t.Error("a record is in a tree whose root is zero")
		}
	})
}

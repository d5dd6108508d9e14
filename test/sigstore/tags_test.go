package sigstore

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/keyless"
	"github.com/berthrun/berth/internal/image/policy"
)

// tagged is a signature of the tag sha256-DIGEST.sig: a claim, and what cosign attaches to it.
type tagged struct {
	payload, signature, certificate, chain []byte
	// hash is that of the payload, for signature and record.
	hash crypto.Hash
	// body is nil for a signature without a record.
	body, promise, logID []byte
	at                   int64
}

// tag signs a claim with a certificate of the authority, or with the key if authority is nil, and records that.
func tag(authority, log *keyless.Keyless, key *imagetest.Signer, template *x509.Certificate, at time.Time) *tagged {
	s := &tagged{payload: imagetest.Claim(image, imageDigest()), hash: crypto.SHA256}
	verifier := key.PublicKey()
	if authority != nil {
		s.certificate = authority.CertifyKey(template, &key.Key().PublicKey)
		verifier = keyless.PEM(s.certificate)
	}
	s.signature = key.Sign(s.payload)
	s.record(log, keyless.HashedRecord(s.hash, s.signature, s.payload, verifier), at)
	return s
}

// record attaches a record of a body.
func (s *tagged) record(log *keyless.Keyless, body []byte, at time.Time) {
	s.body, s.promise, s.logID, s.at = body, log.Promise(body, at), log.LogID(), at.Unix()
}

// larger signs a claim with a certificate for a key of a curve, with a hash.
func larger(t *testing.T, k *keyless.Keyless, curve elliptic.Curve, hash crypto.Hash) *tagged {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &tagged{payload: imagetest.Claim(image, imageDigest()), hash: hash, certificate: k.CertifyKey(k.Leaf(email, issuer), &key.PublicKey)}
	if s.signature, err = key.Sign(rand.Reader, keyless.Sum(hash, s.payload), hash); err != nil {
		t.Fatal(err)
	}
	s.record(k, keyless.HashedRecord(hash, s.signature, s.payload, keyless.PEM(s.certificate)), within(k))
	return s
}

// annotations is the signature as a registry has it.
func (s *tagged) annotations(t *testing.T) policy.Signature {
	t.Helper()
	signature := policy.Signature{Place: "tag", Payload: s.payload, Signature: base64.StdEncoding.EncodeToString(s.signature), Chain: string(s.chain)}
	if s.certificate != nil {
		signature.Certificate = string(keyless.PEM(s.certificate))
	}
	if s.body != nil {
		signature.Rekor = string(encoded(t, map[string]any{
			"SignedEntryTimestamp": s.promise,
			"Payload":              map[string]any{"body": s.body, "integratedTime": s.at, "logIndex": 7, "logID": hex.EncodeToString(s.logID)},
		}))
	}
	return signature
}

// bundle is the signature as a bundle of the claim, in the version that needs no proof: the reference reads bundles alone.
func (s *tagged) bundle(t *testing.T) []byte {
	t.Helper()
	material := map[string]any{"publicKey": map[string]any{"hint": "key"}}
	if s.certificate != nil {
		material = map[string]any{"certificate": map[string]any{"rawBytes": s.certificate}}
	}
	if s.body != nil {
		material["tlogEntries"] = []any{map[string]any{
			"logIndex": 7, "logId": map[string]any{"keyId": s.logID}, "integratedTime": s.at, "canonicalizedBody": s.body,
			"kindVersion":      map[string]any{"kind": "hashedrekord", "version": "0.0.1"},
			"inclusionPromise": map[string]any{"signedEntryTimestamp": s.promise},
		}}
	}
	algorithm := map[crypto.Hash]string{crypto.SHA256: "SHA2_256", crypto.SHA384: "SHA2_384", crypto.SHA512: "SHA2_512"}[s.hash]
	return encoded(t, map[string]any{
		"mediaType": "application/vnd.dev.sigstore.bundle+json;version=0.1", "verificationMaterial": material,
		"messageSignature": map[string]any{"messageDigest": map[string]any{"algorithm": algorithm, "digest": keyless.Sum(s.hash, s.payload)}, "signature": s.signature},
	})
}

func encoded(t *testing.T, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestTags: signatures of tags, which the reference gets as bundles.
func TestTags(t *testing.T) {
	k, second, key := keyless.New(), keyless.New(), imagetest.NewSigner()
	tr := trusting(k)
	logged := &trust{key: key.PublicKey(), logs: tr.logs, from: tr.from}
	alone := &trust{key: key.PublicKey()}
	of := func(change func(*tagged)) *tagged {
		s := tag(k, k, imagetest.NewSigner(), k.Leaf(email, issuer), within(k))
		if change != nil {
			change(s)
		}
		return s
	}
	at := func(offset time.Duration) *tagged {
		return tag(k, k, imagetest.NewSigner(), k.Leaf(email, issuer), k.Now.Add(offset))
	}
	middle := k.Between(nil)
	chained := tag(middle, k, imagetest.NewSigner(), k.Leaf(email, issuer), within(k))
	chained.chain = middle.RootPEM()
	const unsigned, nobody = "not signed by a trusted log", "not enough verified log entries"
	for _, row := range []struct {
		name   string
		trust  *trust
		signed *tagged
		judged
	}{
		{"the signature", tr, of(nil), judged{}},
		{"another person", tr, tag(k, k, key, k.Leaf("eve@example.com", issuer), within(k)), judged{berth: "want ci@example.com", reference: "expected SAN value"}},
		{"another issuer", tr, tag(k, k, key, k.Leaf(email, issuer+"/"), within(k)), judged{berth: "identity of", reference: "expected issuer value"}},
		{"the last second", tr, at(10 * time.Minute), judged{}},
		{"a second late", tr, at(10*time.Minute + time.Second), judged{berth: "not valid at", reference: "integrated time outside"}},
		{"not for code", tr, tag(k, k, key, leaf(k, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), within(k)), judged{berth: "incompatible key usage", reference: "leaf certificate verification failed"}},
		{"another log", tr, tag(k, second, key, k.Leaf(email, issuer), within(k)), judged{berth: unsigned, reference: nobody}},
		{"no record", tr, of(func(s *tagged) { s.body = nil }), judged{berth: "no record of a log", reference: nobody}},
		{"a changed promise", tr, of(func(s *tagged) { s.promise = flip(s.promise) }), judged{berth: unsigned, reference: nobody}},
		{"another time", tr, of(func(s *tagged) { s.at++ }), judged{berth: unsigned, reference: nobody}},
		{"the identity of another log", tr, of(func(s *tagged) { s.logID = second.LogID() }), judged{berth: unsigned, reference: nobody}},
		{"a record of another signature", tr, of(func(s *tagged) { other := of(nil); s.body, s.promise = other.body, other.promise }), judged{berth: "another signature", reference: "signature does not match"}},
		{"a record of an envelope", tr, of(func(s *tagged) {
			s.record(k, keyless.EnvelopeRecord(s.signature, s.payload, keyless.PEM(s.certificate)), within(k))
		}), judged{berth: `is a "dsse"`, reference: "not a hashedrekord"}},
		{"another certificate", tr, of(func(s *tagged) { s.certificate = of(nil).certificate }), judged{berth: "another certificate", reference: "certificate does not match"}},
		{"no certificate", tr, of(func(s *tagged) { s.certificate = nil }), judged{berth: "another certificate", reference: "certificate does not match"}},
		{"a changed claim", tr, of(func(s *tagged) {
			s.payload = bytes.Replace(s.payload, []byte("cosign container"), []byte("cosign  container"), 1)
		}), judged{berth: "another payload", reference: "does not match artifact"}},
		{"a changed signature", tr, of(func(s *tagged) { s.signature = flip(s.signature) }), judged{berth: "another signature", reference: "signature does not match"}},
		{"a chain", tr, chained, judged{reference: "leaf certificate verification failed", why: "cosign attaches the chain to signatures of tags; bundles of this version have none that is read"}},
		{"P-384 with SHA-384", tr, larger(t, k, elliptic.P384(), crypto.SHA384), judged{}},
		{"P-384 with SHA-256", tr, larger(t, k, elliptic.P384(), crypto.SHA256), judged{}},
		{"P-521 with SHA-512", tr, larger(t, k, elliptic.P521(), crypto.SHA512), judged{}},
		{"P-256 with SHA-512", tr, larger(t, k, elliptic.P256(), crypto.SHA512), judged{berth: "not made with a trusted key", reference: "could not verify message"}},
		{"a key in the log", logged, tag(nil, k, key, nil, k.Now), judged{}},
		{"a key in another log", logged, tag(nil, second, key, nil, k.Now), judged{berth: unsigned, reference: nobody}},
		{"another key in the log", logged, tag(nil, k, imagetest.NewSigner(), nil, k.Now), judged{berth: "a key that is not trusted", reference: "certificate does not match"}},
		{"a key", alone, tag(nil, k, key, nil, k.Now), judged{}},
		{"another key", alone, tag(nil, k, imagetest.NewSigner(), nil, k.Now), judged{berth: "not made with a trusted key", reference: "could not verify message"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			says(t, "berth", row.trust.berth(t, row.signed.annotations(t)), row.berth)
			says(t, "sigstore-go", row.trust.reference(t, row.signed.bundle(t), verify.WithArtifact(bytes.NewReader(row.signed.payload))), row.judged.reference)
			row.argued(t)
		})
	}
}

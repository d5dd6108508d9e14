package sigstore

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"testing"

	"github.com/sigstore/rekor/pkg/types"
	_ "github.com/sigstore/rekor/pkg/types/intoto/v0.0.2"

	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// TestAlgorithms: keys of certificates, and how they sign. Bundles of older tools have SHA-256 for every key of ECDSA.
func TestAlgorithms(t *testing.T) {
	k := keyless.New()
	of := func(key crypto.Signer, hash crypto.SignerOpts) []byte {
		payload := keyless.Statement(image, imageDigest())
		data := keyless.Encoded(keyless.StatementType, payload)
		if h := hash.HashFunc(); h != 0 {
			hasher := h.New()
			hasher.Write(data)
			data = hasher.Sum(nil)
		}
		signature, err := key.Sign(rand.Reader, data, hash)
		if err != nil {
			t.Fatal(err)
		}
		cert := k.CertifyKey(k.Leaf(email, issuer), key.Public())
		return k.BundleOf(payload, signature, cert, keyless.PEM(cert), within(k)).JSON()
	}
	ec := func(curve elliptic.Curve) crypto.Signer {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	factors := func(bits int) crypto.Signer {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long := factors(2048)
	check(t, trusting(k), []judged{
		{name: "P-256", bundle: of(ec(elliptic.P256()), crypto.SHA256)},
		{name: "P-256 with SHA-384", bundle: of(ec(elliptic.P256()), crypto.SHA384), berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "P-384 with SHA-256", bundle: of(ec(elliptic.P384()), crypto.SHA256)},
		{name: "P-384", bundle: of(ec(elliptic.P384()), crypto.SHA384)},
		{name: "P-384 with SHA-512", bundle: of(ec(elliptic.P384()), crypto.SHA512), berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "P-521 with SHA-256", bundle: of(ec(elliptic.P521()), crypto.SHA256)},
		{name: "P-521", bundle: of(ec(elliptic.P521()), crypto.SHA512)},
		{name: "P-521 with SHA-384", bundle: of(ec(elliptic.P521()), crypto.SHA384), berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "P-224", bundle: of(ec(elliptic.P224()), crypto.SHA256), berth: "the curve P-224", reference: "unsupported"},
		{name: "RSA 2048", bundle: of(long, crypto.SHA256)},
		{name: "RSA 2048 with SHA-512", bundle: of(long, crypto.SHA512), berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "RSA 2048 with PSS", bundle: of(long, &rsa.PSSOptions{SaltLength: 32, Hash: crypto.SHA256}), berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "RSA 1024", bundle: of(factors(1024), crypto.SHA256), berth: "1024 bits", reference: "unsupported"},
		{
			name: "RSA 2304", bundle: of(factors(2304), crypto.SHA256), reference: "unsupported",
			why: "each length from 2048 bits is strong enough; the reference lists those that Fulcio certifies",
		},
		{name: "Ed25519", bundle: of(edwards, crypto.Hash(0))},
		{name: "Ed25519ph", bundle: of(edwards, crypto.SHA512), berth: "not made with a trusted key", reference: "could not verify envelope"},
	})
}

// TestOlderRecords: the records of envelopes that cosign made before those of the type dsse.
func TestOlderRecords(t *testing.T) {
	k := keyless.New()
	bundle := made(k, func(p *keyless.Parts) {
		ctx := context.Background()
		proposed, err := types.NewProposedEntry(ctx, "intoto", "0.0.2", types.ArtifactProperties{
			ArtifactBytes: encoded(t, map[string]any{
				"payload": p.Payload, "payloadType": p.PayloadType,
				"signatures": []any{map[string]any{"sig": base64.StdEncoding.EncodeToString(p.Signatures[0])}},
			}),
			PublicKeyBytes: [][]byte{keyless.PEM(p.Certificate)},
		})
		if err != nil {
			t.Fatal(err)
		}
		entry, err := types.CreateVersionedEntry(proposed)
		if err != nil {
			t.Fatal(err)
		}
		body, err := types.CanonicalizeEntry(ctx, entry)
		if err != nil {
			t.Fatal(err)
		}
		p.Records[0] = k.Record(body, within(k))
		p.Records[0]["kindVersion"] = map[string]any{"kind": "intoto", "version": "0.0.2"}
	})
	check(t, trusting(k), []judged{{
		name: "intoto", bundle: bundle, berth: `is a "intoto"`,
		why: "tools recorded attestations with this type; the record of an image's signature in a bundle has the type dsse",
	}})
}

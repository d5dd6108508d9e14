package sigstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// TestEnvelopes: the signature, and what it signs.
func TestEnvelopes(t *testing.T) {
	k := keyless.New()
	good := string(keyless.Statement(image, imageDigest()))
	other := imagetest.NewSigner()
	another := strings.Repeat("0", 64)
	changed := func(change func(*keyless.Parts)) []byte { return made(k, change) }
	// resigned is a bundle whose payload, its type and its record fit together.
	resigned := func(payloadType string) []byte {
		key, cert := k.Issue(email, issuer)
		p := k.BundleOf([]byte(good), key.Sign(keyless.Encoded(payloadType, []byte(good))), cert, keyless.PEM(cert), within(k))
		p.PayloadType = payloadType
		return p.JSON()
	}
	_, cert := k.Issue(email, issuer)
	foreign := k.BundleOf([]byte(good), other.Sign(keyless.Encoded(keyless.StatementType, []byte(good))), cert, keyless.PEM(cert), within(k)).JSON()
	bare, certKey := k.Issue(email, issuer)
	plain := k.BundleOf([]byte(good), bare.Sign([]byte(good)), certKey, keyless.PEM(certKey), within(k)).JSON()
	subjects := func(list string) string {
		from := fmt.Sprintf(`[{"name":%q,"digest":{"sha256":%q}}]`, image, imageDigest().Encoded())
		return strings.Replace(good, from, list, 1)
	}
	mine := fmt.Sprintf(`{"name":%q,"digest":{"sha256":%q}}`, image, imageDigest().Encoded())
	theirs := fmt.Sprintf(`{"name":%q,"digest":{"sha256":%q}}`, image, another)
	check(t, trusting(k), []judged{
		{name: "the statement", bundle: changed(nil)},
		{name: "a signature of another key", bundle: foreign, berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "a signature of the payload alone", bundle: plain, berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "a changed signature", bundle: changed(func(p *keyless.Parts) { p.Signatures[0] = flip(p.Signatures[0]) }), berth: "another signature", reference: "signature does not match"},
		{name: "half a signature", bundle: changed(func(p *keyless.Parts) { p.Signatures[0] = p.Signatures[0][:20] }), berth: "another signature", reference: "signature does not match"},
		{name: "no signature", bundle: changed(func(p *keyless.Parts) { p.Signatures = nil }), berth: "no envelope of one signature", reference: "signature does not match"},
		{name: "the signature twice", bundle: changed(func(p *keyless.Parts) { p.Signatures = append(p.Signatures, p.Signatures[0]) }), berth: "no envelope of one signature", reference: "exactly one signature"},
		{name: "a changed payload", bundle: changed(func(p *keyless.Parts) { p.Payload = flip(p.Payload) }), berth: "another payload", reference: "does not match envelope payload hash"},
		{name: "no payload", bundle: changed(func(p *keyless.Parts) { p.Payload = nil }), berth: "another payload", reference: "missing valid envelope"},
		{name: "another type of payload", bundle: resigned("application/json"), berth: "statement of in-toto", reference: "unsupported DSSE payload type"},
		{name: "a changed type of payload", bundle: changed(func(p *keyless.Parts) { p.PayloadType += " " }), berth: "statement of in-toto", reference: "could not verify envelope"},
		{name: "no type of payload", bundle: changed(func(p *keyless.Parts) { p.PayloadType = "" }), berth: "statement of in-toto", reference: "could not verify envelope"},
		{name: "another image", bundle: stating(k, subjects("["+theirs+"]")), berth: "not of this image", reference: "does not match any digest"},
		{name: "the image as the second of two", bundle: stating(k, subjects("["+theirs+","+mine+"]"))},
		{name: "no image", bundle: stating(k, subjects("[]")), berth: "it is of no image", reference: "does not match digests"},
		{name: "a digest of another algorithm", bundle: stating(k, strings.Replace(good, "sha256", "sha512", 1)), berth: "not of this image", reference: "failed to verify signature"},
		{
			name: "a digest in capitals", bundle: stating(k, strings.Replace(good, imageDigest().Encoded(), strings.ToUpper(imageDigest().Encoded()), 1)), berth: "not of this image",
			why: "a digest of OCI has small letters",
		},
		{name: "half a digest", bundle: stating(k, strings.Replace(good, imageDigest().Encoded(), imageDigest().Encoded()[:32], 1)), berth: "not of this image", reference: "failed to verify signature"},
		{
			name: "another repository", bundle: stating(k, string(keyless.Statement("r.test/other", imageDigest()))), berth: "wants r.test/app",
			why: "the reference compares no names; signedIdentity does",
		},
		{
			name: "no repository", bundle: stating(k, string(keyless.Statement("", imageDigest()))), berth: "names no repository",
			why: "the reference compares no names; image.unnamed_signatures does",
		},
		{
			name: "an attestation", bundle: stating(k, strings.Replace(good, keyless.SignPredicate, "https://slsa.dev/provenance/v1", 1)), berth: "does not sign it",
			why: "an attestation says something else of the image than that it is signed; the reference leaves this to its caller",
		},
		{
			name: "another type of statement", bundle: stating(k, strings.Replace(good, "https://in-toto.io/Statement/v1", "https://example.com/v1", 1)), berth: "does not sign it",
			why: "the type says what the other fields mean; the reference leaves this to its caller",
		},
		{
			name: "a statement with another field", bundle: stating(k, strings.Replace(good, "{", `{"later":1,`, 1)), reference: "decoding json",
			why: "a field that is not read changes nothing: the trusted key has signed the ones that are",
		},
		{name: "a statement that is cut", bundle: stating(k, good[:len(good)-1]), berth: "not JSON", reference: "failed to verify signature"},
		{name: "two statements", bundle: stating(k, good+good), berth: "not JSON", reference: "failed to verify signature"},
		{name: "a list", bundle: stating(k, "["+good+"]"), berth: "not JSON", reference: "failed to verify signature"},
	})
}

// TestKeys: bundles of a key that the policy names.
func TestKeys(t *testing.T) {
	k := keyless.New()
	key, other := imagetest.NewSigner(), imagetest.NewSigner()
	alone := &trust{key: key.PublicKey()}
	logged := &trust{key: key.PublicKey(), logs: []*keyless.Keyless{k}, from: trusting(k).from}
	anyTime := *logged
	anyTime.anyTime = true
	payload := keyless.Statement(image, imageDigest())
	foreign := other.Sign(keyless.Encoded(keyless.StatementType, payload))
	of := func(by *imagetest.Signer, change func(*keyless.Parts)) []byte {
		p := k.Bundle(payload, by, nil, k.Now)
		if change != nil {
			change(p)
		}
		return p.JSON()
	}
	_, cert := k.Issue(email, issuer)
	check(t, logged, []judged{
		{name: "in the log", bundle: of(key, nil)},
		{name: "in a log that nobody asks", bundle: of(key, nil), trust: alone},
		{name: "in a log that nobody asks and with a wrong promise", bundle: of(key, func(p *keyless.Parts) { p.Field("inclusionPromise")["signedEntryTimestamp"] = []byte("x") }), trust: alone},
		{name: "without a record", bundle: key.Bundle(image, imageDigest(), keyless.SignPredicate), trust: alone},
		{name: "without a record where one is wanted", bundle: key.Bundle(image, imageDigest(), keyless.SignPredicate), berth: "0 records", reference: "not enough verified log entries"},
		{name: "another key", bundle: other.Bundle(image, imageDigest(), keyless.SignPredicate), trust: alone, berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "another key in the log", bundle: of(other, nil), berth: "a key that is not trusted", reference: "certificate does not match"},
		{name: "another key with a record of the key", bundle: k.BundleOf(payload, foreign, nil, key.PublicKey(), k.Now).JSON(), berth: "not made with a trusted key", reference: "could not verify envelope"},
		{name: "a record with a certificate", bundle: k.BundleOf(payload, key.Sign(keyless.Encoded(keyless.StatementType, payload)), nil, keyless.PEM(cert), k.Now).JSON(), berth: "a key that is not trusted", reference: "certificate does not match"},
		{
			name: "with a certificate", bundle: of(key, func(p *keyless.Parts) { p.Certificate = cert }), trust: alone, reference: "expected key signature",
			why: "the trusted key has made the signature; what else the bundle has changes nothing",
		},
		{
			name: "with neither a name of the key nor a certificate", trust: alone,
			bundle: object(t, of(key, nil), func(b map[string]any) { delete(b, "verificationMaterial") }), reference: "missing verification material",
			why: "the policy names the key, so the bundle need not",
		},
		{
			name: "without a promise", bundle: of(key, func(p *keyless.Parts) { delete(p.Records[0], "inclusionPromise") }), trust: &anyTime, berth: "no signed time",
			why: "the reference may do without a time for a key; a log of version 1 always promises",
		},
	})
}

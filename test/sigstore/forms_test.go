package sigstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

func hexOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// TestVersions: the version of a bundle, and what it may have.
func TestVersions(t *testing.T) {
	k := keyless.New()
	of := func(mediaType string) []byte {
		return made(k, func(p *keyless.Parts) { p.MediaType = mediaType })
	}
	// chained has its certificate in a chain.
	chained := func(mediaType string) []byte {
		return object(t, of(mediaType), func(b map[string]any) {
			material := b["verificationMaterial"].(map[string]any)
			material["x509CertificateChain"] = map[string]any{"certificates": []any{material["certificate"]}}
			delete(material, "certificate")
		})
	}
	const first, second = "application/vnd.dev.sigstore.bundle+json;version=0.1", "application/vnd.dev.sigstore.bundle+json;version=0.2"
	const old = "cosign writes version 0.3 alone for images, and berth asks the registry for that one"
	check(t, trusting(k), []judged{
		{name: "0.3", bundle: of(imagetest.BundleType)},
		{name: "0.3 in the older form", bundle: of("application/vnd.dev.sigstore.bundle+json;version=0.3")},
		{name: "0.1", bundle: of(first), berth: "not version 0.3", why: old},
		{name: "0.2", bundle: of(second), berth: "not version 0.3", why: old},
		{name: "0.1 with a chain", bundle: chained(first), berth: "not version 0.3", why: old},
		{name: "0.2 with a chain", bundle: chained(second), berth: "not version 0.3", why: old},
		{name: "0.3 with a chain", bundle: chained(imagetest.BundleType), berth: "another certificate", reference: "cannot be X.509 certificate chain"},
		{name: "0.3.1", bundle: of("application/vnd.dev.sigstore.bundle.v0.3.1+json"), berth: "not version 0.3", why: old},
		{name: "0.4", bundle: of("application/vnd.dev.sigstore.bundle.v0.4+json"), berth: "not version 0.3", reference: "not yet supported"},
		{name: "1.0", bundle: of("application/vnd.dev.sigstore.bundle.v1.0+json"), berth: "not version 0.3", reference: "not yet supported"},
		{name: "0.0", bundle: of("application/vnd.dev.sigstore.bundle.v0.0+json"), berth: "not version 0.3", reference: "not supported"},
		{name: "none", bundle: of(""), berth: "not version 0.3", reference: "unsupported media type"},
		{name: "something else", bundle: of("application/json"), berth: "not version 0.3", reference: "unsupported media type"},
		{name: "in capitals", bundle: of(strings.ToUpper(imagetest.BundleType)), berth: "not version 0.3", reference: "unsupported media type"},
	})
}

// TestForms: how a bundle is written.
func TestForms(t *testing.T) {
	k := keyless.New()
	good := made(k, nil)
	withType := func(with string) []byte { return replaced(t, good, `"mediaType":`, with) }
	const tolerant = "what is read is signed, or checked against what is signed; berth skips what it does not know"
	const strict = "protobuf's own writers never write this form"
	check(t, trusting(k), []judged{
		{name: "the bundle", bundle: good},
		{name: "numbers without quotes", bundle: replaced(t, good, `"logIndex":"7"`, `"logIndex":7`)},
		{name: "a number with a fraction", bundle: replaced(t, good, `"logIndex":"7"`, `"logIndex":7.5`), berth: "not Rekor's", reference: "invalid value"},
		{name: "a number with an exponent", bundle: replaced(t, good, `"logIndex":"7"`, `"logIndex":0.7e1`), berth: "not Rekor's", why: strict},
		{name: "a text in the place of a number", bundle: replaced(t, good, `"logIndex":"7"`, `"logIndex":"seven"`), berth: "not a bundle", reference: "invalid value"},
		{name: "a field that nobody knows", bundle: withType(`"later":1,"mediaType":`), reference: "unknown field", why: tolerant},
		{name: "a field twice", bundle: withType(`"mediaType":"application/json","mediaType":`), reference: "duplicate field", why: tolerant},
		{name: "a name in capitals", bundle: withType(`"MEDIATYPE":`), reference: "unknown field", why: tolerant},
		{name: "a name of the message's field", bundle: replaced(t, good, `"verificationMaterial":`, `"verification_material":`), berth: "0 records", why: strict},
		{name: "null", bundle: []byte("null"), berth: "not version 0.3", reference: "unexpected token"},
		{name: "a field that is null", bundle: withType(`"messageSignature":null,"mediaType":`)},
		{name: "spaces", bundle: bytes.ReplaceAll(good, []byte(`":`), []byte("\" :\n\t"))},
		{name: "base64 for addresses", bundle: made(k, func(p *keyless.Parts) {
			p.Records[0]["logId"] = map[string]any{"keyId": strings.TrimRight(forAddresses(k.LogID()), "=")}
		}), berth: "not a bundle", why: strict},
		{name: "no base64", bundle: replaced(t, good, `"rawBytes":"`, `"rawBytes":"%`), berth: "not a bundle", reference: "invalid value"},
		{name: "nothing", bundle: []byte{}, berth: "not a bundle", reference: "unexpected token"},
		{name: "an empty object", bundle: []byte("{}"), berth: "not version 0.3", reference: "unsupported media type"},
		{name: "a list", bundle: []byte("[]"), berth: "not a bundle", reference: "unexpected token"},
		{name: "a cut bundle", bundle: good[:len(good)-1], berth: "not a bundle", reference: "unexpected EOF"},
		{name: "two bundles", bundle: append(bytes.Clone(good), good...), berth: "not a bundle", reference: "unexpected token"},
		{name: "both contents", bundle: withType(`"messageSignature":{"signature":"AA=="},"mediaType":`), reference: "error parsing", why: tolerant},
		{name: "no envelope", bundle: object(t, good, func(b map[string]any) { delete(b, "dsseEnvelope") }), berth: "no envelope of one signature", reference: "missing bundle content"},
	})
}

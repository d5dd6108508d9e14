package sigstore

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// within is a time at which certificates are valid.
func within(k *keyless.Keyless) time.Time { return k.Now.Add(time.Minute) }

// made is a bundle with a certificate of the authority for the identity, of which change changes a part.
func made(k *keyless.Keyless, change func(*keyless.Parts)) []byte {
	return certified(k, k.Leaf(email, issuer), within(k), change)
}

// certified is a bundle with a certificate, recorded at a time.
func certified(k *keyless.Keyless, leaf *x509.Certificate, at time.Time, change func(*keyless.Parts)) []byte {
	key, cert := k.Certify(leaf)
	p := k.Bundle(keyless.Statement(image, imageDigest()), key, cert, at)
	if change != nil {
		change(p)
	}
	return p.JSON()
}

// leaf is the template of a certificate for the identity with a change.
func leaf(k *keyless.Keyless, change func(*x509.Certificate)) *x509.Certificate {
	template := k.Leaf(email, issuer)
	change(template)
	return template
}

// stating is a bundle with another payload.
func stating(k *keyless.Keyless, payload string) []byte {
	key, cert := k.Issue(email, issuer)
	return k.Bundle([]byte(payload), key, cert, within(k)).JSON()
}

// recorded is a bundle whose record has another body, which the log has signed.
func recorded(k *keyless.Keyless, change func(body []byte) []byte) []byte {
	return made(k, func(p *keyless.Parts) {
		p.Records[0] = k.Record(change(p.Records[0]["canonicalizedBody"].([]byte)), within(k))
	})
}

// replaced is a bundle with a text in the place of another one, which it has once.
func replaced(t *testing.T, data []byte, from, to string) []byte {
	t.Helper()
	if bytes.Count(data, []byte(from)) != 1 {
		t.Fatalf("%q is not once in %s", from, data)
	}
	return bytes.Replace(data, []byte(from), []byte(to), 1)
}

// flip changes a bit in the middle of data.
func flip(data []byte) []byte {
	data = bytes.Clone(data)
	data[len(data)/2] ^= 1
	return data
}

// object is a bundle as an object of JSON.
func object(t *testing.T, data []byte, change func(map[string]any)) []byte {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	change(fields)
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// forAddresses is base64 with the characters of addresses.
func forAddresses(data []byte) string { return base64.URLEncoding.EncodeToString(data) }

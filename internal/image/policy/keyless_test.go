package policy

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// keyless is a local Fulcio and Rekor.
type keyless struct {
	ca, rekor *imagetest.Signer
	root      *x509.Certificate
	now       time.Time
}

func newKeyless(t *testing.T) *keyless {
	t.Helper()
	k := &keyless{ca: imagetest.NewSigner(), rekor: imagetest.NewSigner(), now: time.Unix(1_700_000_000, 0)}
	k.reroot(t)
	return k
}

// reroot makes the certificate of the authority, which is valid for two hours before and after now.
func (k *keyless) reroot(t *testing.T) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fulcio"}, NotBefore: k.now.Add(-2 * time.Hour), NotAfter: k.now.Add(2 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.ca.Key().PublicKey, k.ca.Key())
	if err != nil {
		t.Fatal(err)
	}
	if k.root, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
}

func (k *keyless) sign(t *testing.T, payload []byte, email, issuer string, loggedAt time.Time) Signature {
	t.Helper()
	key, cert := k.issue(t, email, issuer)
	signature := key.Sign(payload)
	return Signature{
		Payload: payload, Signature: base64.StdEncoding.EncodeToString(signature), Certificate: string(cert),
		Rekor: k.record(t, signature, payload, cert, loggedAt),
	}
}

// issue makes a key and a certificate for an identity, valid for ten minutes.
func (k *keyless) issue(t *testing.T, email, issuer string) (key *imagetest.Signer, cert []byte) {
	t.Helper()
	return k.certify(t, &x509.Certificate{
		NotBefore: k.now, NotAfter: k.now.Add(10 * time.Minute), EmailAddresses: []string{email},
		ExtKeyUsage:     []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{{Id: issuerRaw(), Value: []byte(issuer)}},
	})
}

// certify makes a key and a certificate of the authority, in PEM.
func (k *keyless) certify(t *testing.T, template *x509.Certificate) (key *imagetest.Signer, cert []byte) {
	t.Helper()
	key = imagetest.NewSigner()
	template.SerialNumber, template.KeyUsage = big.NewInt(2), template.KeyUsage|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, k.root, &key.Key().PublicKey, k.ca.Key())
	if err != nil {
		t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// promise is what Rekor signs at once of a record.
func (k *keyless) promise(body string, at time.Time) []byte {
	return k.rekor.Sign(fmt.Appendf(nil, `{"body":"%s","integratedTime":%d,"logID":"%s","logIndex":7}`, body, at.Unix(), logID))
}

// logID is the identity of a log, which nothing checks: its key counts.
const logID = "abababababababababababababababababababababababababababababababab"

func (k *keyless) record(t *testing.T, signature, payload, key []byte, at time.Time) string {
	t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"0.0.1","kind":"hashedrekord","spec":{"data":{"hash":{"algorithm":"sha256","value":"%x"}},"signature":{"content":"%s","publicKey":{"content":"%s"}}}}`,
		sum(payload), base64.StdEncoding.EncodeToString(signature), base64.StdEncoding.EncodeToString(key))
	encoded := base64.StdEncoding.EncodeToString([]byte(body))
	data, err := json.Marshal(map[string]any{
		"SignedEntryTimestamp": k.promise(encoded, at),
		"Payload":              map[string]any{"body": encoded, "integratedTime": at.Unix(), "logIndex": 7, "logID": logID},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// policyFor is a policy that demands a signature of an identity, with a certificate of k's CA and a record of k's log.
func (k *keyless) policyFor(t *testing.T, email, issuer string) string {
	t.Helper()
	ca := write(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.root.Raw}))
	return fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "fulcio": {"caPath": %q, "oidcIssuer": %q, "subjectEmail": %q},
		"rekorPublicKeyPath": %q, "signedIdentity": {"type": "matchRepository"}}]}`, ca, issuer, email, write(t, "rekor.pub", k.rekor.PublicKey()))
}

func TestKeyless(t *testing.T) {
	const email, issuer = "ci@example.com", "https://issuer.example"
	k, other := newKeyless(t), newKeyless(t)
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	rules := read(t, k.policyFor(t, email, issuer)).For(ref)
	payload := imagetest.Claim("r.test/app", dgst)
	within := k.now.Add(time.Minute)
	good := k.sign(t, payload, email, issuer, within)
	unlogged, otherRecord, moved, swapped := good, good, good, good
	unlogged.Rekor = ""
	otherRecord.Rekor = other.record(t, []byte("x"), payload, []byte(good.Certificate), within)
	moved.Rekor = strings.Replace(good.Rekor, fmt.Sprint(within.Unix()), fmt.Sprint(within.Unix()+1), 1)
	swapped.Rekor = k.sign(t, payload, email, issuer, within).Rekor
	both := other.sign(t, payload, email, issuer, within)
	both.Rekor = strings.Replace(both.Rekor, "Payload", "Payload", 1)
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":              {good, ""},
		"another person":    {k.sign(t, payload, "eve@example.com", issuer, within), "is for"},
		"another issuer":    {k.sign(t, payload, email, "https://other.example", within), "identity of"},
		"expired":           {k.sign(t, payload, email, issuer, k.now.Add(11*time.Minute)), "not valid at"},
		"before it":         {k.sign(t, payload, email, issuer, k.now.Add(-time.Minute)), "not valid at"},
		"not logged":        {unlogged, "no record"},
		"another log":       {otherRecord, "trusted log"},
		"changed time":      {moved, "trusted log"},
		"another record":    {swapped, "another signature"},
		"another authority": {both, "trusted log"},
		"another digest":    {k.sign(t, imagetest.Claim("r.test/app", "sha256:"+digest.Digest(strings.Repeat("0", 64))), email, issuer, within), "not of this image"},
		"another repo":      {k.sign(t, imagetest.Claim("r.test/other", dgst), email, issuer, within), "wants r.test/app"},
	} {
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestPKI: a certificate of an authority of one's own must be valid now, and for all that the policy names.
func TestPKI(t *testing.T) {
	k, other := newKeyless(t), newKeyless(t)
	now := time.Now()
	for _, authority := range []*keyless{k, other} {
		authority.now = now
		authority.reroot(t)
	}
	middle := &keyless{rekor: k.rekor, now: now}
	between, der := k.certify(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "between"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	middle.ca, middle.root = between, parse(t, der)
	ca := write(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.root.Raw}))
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	leaf := func(from *keyless, email, host string, ends time.Time) Signature {
		template := &x509.Certificate{NotBefore: now.Add(-time.Hour), NotAfter: ends, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}
		if email != "" {
			template.EmailAddresses = []string{email}
		}
		if host != "" {
			template.DNSNames = []string{host}
		}
		key, cert := from.certify(t, template)
		s := claim(key, "r.test/app", dgst)
		s.Certificate = string(cert)
		return s
	}
	ends := now.Add(time.Hour)
	good := leaf(k, "ci@example.com", "build.example.com", ends)
	bare, chained, server := good, leaf(middle, "ci@example.com", "build.example.com", ends), claim(imagetest.NewSigner(), "r.test/app", dgst)
	bare.Certificate = ""
	withChain := chained
	withChain.Chain = string(der)
	server.Certificate = good.Certificate
	const email, both = `"subjectEmail":"ci@example.com"`, `"subjectEmail":"ci@example.com","subjectHostname":"build.example.com"`
	for name, test := range map[string]struct {
		fields    string
		signature Signature
		want      string
	}{
		"good":                         {email, good, ""},
		"good host":                    {`"subjectHostname":"build.example.com"`, good, ""},
		"good with both":               {both, good, ""},
		"another person":               {email, leaf(k, "eve@example.com", "", ends), "want ci@example.com"},
		"another host":                 {both, leaf(k, "ci@example.com", "x.example.com", ends), "want build.example.com"},
		"a wildcard":                   {both, leaf(k, "ci@example.com", "*.example.com", ends), "want build.example.com"},
		"no host":                      {both, leaf(k, "ci@example.com", "", ends), "want build.example.com"},
		"expired":                      {email, leaf(k, "ci@example.com", "", now.Add(-time.Minute)), "not valid at"},
		"another authority":            {email, leaf(other, "ci@example.com", "", ends), "not valid at"},
		"no certificate":               {email, bare, "no certificate"},
		"another key":                  {email, server, "not made with a trusted key"},
		"an unknown authority between": {email, chained, "not valid at"},
		"an authority of the policy":   {fmt.Sprintf(`%s,"caIntermediatesData":%q`, email, base64.StdEncoding.EncodeToString(der)), chained, ""},
		"an authority of the chain":    {email, withChain, ""},
	} {
		rules := read(t, fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "pki": {"caRootsPath": %q, %s}, "signedIdentity": {"type": "matchRepository"}}]}`, ca, test.fields)).For(ref)
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func parse(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

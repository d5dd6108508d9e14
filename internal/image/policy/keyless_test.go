package policy

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// keylessly is a signature of a claim with a certificate for an identity.
func keylessly(k *keyless.Keyless, payload []byte, email, issuer string, loggedAt time.Time) Signature {
	key, cert := k.Issue(email, issuer)
	signature := key.Sign(payload)
	return Signature{
		Payload: payload, Signature: base64.StdEncoding.EncodeToString(signature), Certificate: string(keyless.PEM(cert)),
		Rekor: k.Annotation(signature, payload, keyless.PEM(cert), loggedAt),
	}
}

// policyFor is a policy that demands a signature of an identity, with a certificate of k's CA and a record of k's log.
func policyFor(t *testing.T, k *keyless.Keyless, email, issuer string) string {
	t.Helper()
	ca := write(t, "ca.pem", k.RootPEM())
	return fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "fulcio": {"caPath": %q, "oidcIssuer": %q, "subjectEmail": %q},
		"rekorPublicKeyPath": %q, "signedIdentity": {"type": "matchRepository"}}]}`, ca, issuer, email, write(t, "rekor.pub", k.Rekor.PublicKey()))
}

func TestKeyless(t *testing.T) {
	const email, issuer = "ci@example.com", "https://issuer.example"
	k, other := keyless.New(), keyless.New()
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	rules := read(t, policyFor(t, k, email, issuer)).For(ref)
	payload := imagetest.Claim("r.test/app", dgst)
	within := k.Now.Add(time.Minute)
	good := keylessly(k, payload, email, issuer, within)
	unlogged, otherRecord, moved, swapped := good, good, good, good
	unlogged.Rekor = ""
	otherRecord.Rekor = other.Annotation([]byte("x"), payload, []byte(good.Certificate), within)
	moved.Rekor = strings.Replace(good.Rekor, fmt.Sprint(within.Unix()), fmt.Sprint(within.Unix()+1), 1)
	swapped.Rekor = keylessly(k, payload, email, issuer, within).Rekor
	both := keylessly(other, payload, email, issuer, within)
	both.Rekor = strings.Replace(both.Rekor, "Payload", "Payload", 1)
	for name, test := range map[string]struct {
		signature Signature
		want      string
	}{
		"good":              {good, ""},
		"another person":    {keylessly(k, payload, "eve@example.com", issuer, within), "is for"},
		"another issuer":    {keylessly(k, payload, email, "https://other.example", within), "identity of"},
		"expired":           {keylessly(k, payload, email, issuer, k.Now.Add(11*time.Minute)), "not valid at"},
		"before it":         {keylessly(k, payload, email, issuer, k.Now.Add(-time.Minute)), "not valid at"},
		"not logged":        {unlogged, "no record"},
		"another log":       {otherRecord, "trusted log"},
		"changed time":      {moved, "trusted log"},
		"another record":    {swapped, "another signature"},
		"another authority": {both, "trusted log"},
		"another digest":    {keylessly(k, imagetest.Claim("r.test/app", "sha256:"+digest.Digest(strings.Repeat("0", 64))), email, issuer, within), "not of this image"},
		"another repo":      {keylessly(k, imagetest.Claim("r.test/other", dgst), email, issuer, within), "wants r.test/app"},
	} {
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestPKI: a certificate of an authority of one's own must be valid now, and for all that the policy names.
func TestPKI(t *testing.T) {
	now := time.Now()
	k, other := keyless.At(now), keyless.At(now)
	middle := k.Between(nil)
	ca := write(t, "ca.pem", k.RootPEM())
	ref, dgst := named(t, "r.test/app:1"), digest.FromString("image")
	leaf := func(from *keyless.Keyless, email, host string, ends time.Time) Signature {
		template := &x509.Certificate{NotBefore: now.Add(-time.Hour), NotAfter: ends, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}
		if email != "" {
			template.EmailAddresses = []string{email}
		}
		if host != "" {
			template.DNSNames = []string{host}
		}
		key, cert := from.Certify(template)
		s := claim(key, "r.test/app", dgst)
		s.Certificate = string(keyless.PEM(cert))
		return s
	}
	ends := now.Add(time.Hour)
	good := leaf(k, "ci@example.com", "build.example.com", ends)
	bare, chained, server := good, leaf(middle, "ci@example.com", "build.example.com", ends), claim(imagetest.NewSigner(), "r.test/app", dgst)
	bare.Certificate = ""
	withChain := chained
	withChain.Chain = string(middle.RootPEM())
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
		"an authority of the policy":   {fmt.Sprintf(`%s,"caIntermediatesData":%q`, email, base64.StdEncoding.EncodeToString(middle.RootPEM())), chained, ""},
		"an authority of the chain":    {email, withChain, ""},
	} {
		rules := read(t, fmt.Sprintf(`{"default": [{"type":"sigstoreSigned", "pki": {"caRootsPath": %q, %s}, "signedIdentity": {"type": "matchRepository"}}]}`, ca, test.fields)).For(ref)
		err := rules.Check(Image{Name: ref, Digests: []digest.Digest{dgst}}, []Signature{test.signature})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

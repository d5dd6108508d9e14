package sigstore

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/url"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// issued replaces the extensions with the issuer.
func issued(extensions ...pkix.Extension) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtraExtensions = extensions }
}

// TestIdentities: whom a certificate is for.
func TestIdentities(t *testing.T) {
	k := keyless.New()
	of := func(change func(*x509.Certificate)) []byte {
		return certified(k, leaf(k, change), within(k), nil)
	}
	printable, err := asn1.MarshalWithParams("https://issuer.example", "printable")
	if err != nil {
		t.Fatal(err)
	}
	der := keyless.IssuerDER(issuer)
	wrong := der
	wrong.Value = printable
	trailing := der
	trailing.Value = append(append([]byte{}, der.Value...), 0)
	page := &url.URL{Scheme: "https", Host: "ci.example.com", Path: "/workflow"}
	check(t, trusting(k), []judged{
		{name: "the identity", bundle: of(func(*x509.Certificate) {})},
		{name: "another person", bundle: of(func(c *x509.Certificate) { c.EmailAddresses[0] = "eve@example.com" }), berth: "want ci@example.com", reference: "expected SAN value"},
		{name: "a longer name", bundle: of(func(c *x509.Certificate) { c.EmailAddresses[0] += ".evil.example" }), berth: "want ci@example.com", reference: "expected SAN value"},
		{name: "the name in capitals", bundle: of(func(c *x509.Certificate) { c.EmailAddresses[0] = "CI@example.com" }), berth: "want ci@example.com", reference: "expected SAN value"},
		{name: "no name", bundle: of(func(c *x509.Certificate) { c.EmailAddresses = nil }), berth: "want ci@example.com", reference: "no Subject Alternative Name"},
		{name: "the name as a host", bundle: of(func(c *x509.Certificate) { c.EmailAddresses, c.DNSNames = nil, []string{email} }), berth: "want ci@example.com", reference: "no Subject Alternative Name"},
		{name: "a page in the place of the person", bundle: of(func(c *x509.Certificate) { c.EmailAddresses, c.URIs = nil, []*url.URL{page} }), berth: "want ci@example.com", reference: "expected SAN value"},
		{
			name: "a page beside the person", bundle: of(func(c *x509.Certificate) { c.URIs = []*url.URL{page} }), reference: "expected SAN value",
			why: "any email address of the certificate counts, as for podman and CRI-O; Fulcio writes one name",
		},
		{name: "the first of two persons", bundle: of(func(c *x509.Certificate) { c.EmailAddresses = append(c.EmailAddresses, "eve@example.com") })},
		{
			name: "the second of two persons", bundle: of(func(c *x509.Certificate) { c.EmailAddresses = []string{"eve@example.com", email} }), reference: "expected SAN value",
			why: "any email address of the certificate counts, as for podman and CRI-O; Fulcio writes one name",
		},
		{name: "another issuer", bundle: of(issued(keyless.IssuerRaw("https://other.example"))), berth: "identity of", reference: "expected issuer value"},
		{name: "a longer issuer", bundle: of(issued(keyless.IssuerRaw(issuer + "/"))), berth: "identity of", reference: "expected issuer value"},
		{name: "no issuer", bundle: of(issued()), berth: "names the issuers []", reference: "expected issuer value"},
		{name: "the issuer in DER", bundle: of(issued(der))},
		{name: "the issuer in both forms", bundle: of(issued(keyless.IssuerRaw(issuer), der))},
		{name: "a printable issuer in DER", bundle: of(issued(wrong)), berth: "", reference: ""},
		{name: "an issuer in DER with more bytes", bundle: of(issued(trailing)), berth: "cannot be read", reference: "trailing bytes"},
		{name: "two issuers, the first is right", bundle: of(issued(keyless.IssuerRaw(issuer), keyless.IssuerDER("https://other.example"))), berth: "want one", reference: "expected issuer value"},
		{
			name: "two issuers, the second is right", bundle: of(issued(keyless.IssuerRaw("https://other.example"), der)), berth: "want one",
			why: "a certificate that contradicts itself is not Fulcio's; podman and CRI-O refuse it, too",
		},
	})
}

// TestCertificates: the chain, the time and the uses of a certificate.
func TestCertificates(t *testing.T) {
	k, other := keyless.New(), keyless.New()
	of := func(change func(*x509.Certificate)) []byte {
		return certified(k, leaf(k, change), within(k), nil)
	}
	at := func(offset time.Duration) []byte {
		return certified(k, k.Leaf(email, issuer), k.Now.Add(offset), nil)
	}
	// under is a bundle with a certificate of an authority below, and what trusts both.
	under := func(change func(*x509.Certificate)) ([]byte, *trust) {
		middle, tr := k.Between(change), trusting(k)
		tr.between = append(tr.between, middle.Root)
		return made(middle, nil), tr
	}
	rows := []judged{
		{name: "the first second", bundle: at(0)},
		{name: "the last second", bundle: at(10 * time.Minute)},
		{name: "a second early", bundle: at(-time.Second), berth: "not valid at", reference: "integrated time outside"},
		{name: "a second late", bundle: at(10*time.Minute + time.Second), berth: "not valid at", reference: "integrated time outside"},
		{name: "the year 1970", bundle: certified(k, k.Leaf(email, issuer), time.Unix(0, 0), nil), berth: "not valid at", reference: "not enough verified log entries"},
		{name: "another authority of the same name", bundle: certified(&keyless.Keyless{CA: other.CA, Root: other.Root, Rekor: k.Rekor, Now: k.Now}, other.Leaf(email, issuer), within(k), nil), berth: "unknown authority", reference: "leaf certificate verification failed"},
		{name: "not for code", bundle: of(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), berth: "incompatible key usage", reference: "leaf certificate verification failed"},
		{name: "for no use", bundle: of(func(c *x509.Certificate) { c.ExtKeyUsage = nil })},
		{name: "for any use", bundle: of(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })},
		{name: "for two uses", bundle: of(func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) })},
		{name: "a critical extension", bundle: of(func(c *x509.Certificate) { c.ExtraExtensions = append(c.ExtraExtensions, unknown(true)) }), berth: "unhandled critical extension", reference: "leaf certificate verification failed"},
		{name: "an extension", bundle: of(func(c *x509.Certificate) { c.ExtraExtensions = append(c.ExtraExtensions, unknown(false)) })},
		{name: "an authority as a signer", bundle: of(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true })},
		{name: "no certificate in DER", bundle: made(k, func(p *keyless.Parts) { p.Certificate = []byte("x") }), berth: "another certificate", reference: "x509"},
		{name: "an authority below that nobody trusts", bundle: made(k.Between(nil), nil), berth: "unknown authority", reference: "leaf certificate verification failed"},
	}
	for _, row := range []struct {
		judged
		change func(*x509.Certificate)
	}{
		{judged{name: "an authority below"}, nil},
		{judged{name: "an authority below that is none", berth: "x509", reference: "leaf certificate verification failed"}, func(c *x509.Certificate) { c.IsCA = false }},
		{judged{name: "an authority below for servers", berth: "incompatible key usage", reference: "leaf certificate verification failed"}, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }},
		{judged{name: "an authority below for code"}, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }},
		{judged{name: "an authority below that has expired", berth: "expired", reference: "leaf certificate verification failed"}, func(c *x509.Certificate) { c.NotAfter = k.Now.Add(time.Second) }},
		{judged{name: "an authority below for other names", berth: "not permitted", reference: "leaf certificate verification failed"}, func(c *x509.Certificate) { c.PermittedEmailAddresses = []string{"other.example"} }},
		{judged{name: "an authority below with a path of none"}, func(c *x509.Certificate) { c.MaxPathLenZero = true }},
	} {
		row.bundle, row.trust = under(row.change)
		rows = append(rows, row.judged)
	}
	// Two authorities below, of which the upper one may have none below it.
	upper := k.Between(func(c *x509.Certificate) { c.MaxPathLenZero = true })
	lower := upper.Between(nil)
	long := trusting(k)
	long.between = []*x509.Certificate{lower.Root, upper.Root}
	// An authority whose own certificate has ended before.
	old := keyless.At(k.Now.Add(-3 * time.Hour))
	old.Rekor = k.Rekor
	below := old.Between(func(c *x509.Certificate) { c.NotAfter = k.Now.Add(time.Hour) })
	ended := &trust{root: old.Root, between: []*x509.Certificate{below.Root}, logs: []*keyless.Keyless{k}, from: time.Unix(1, 0)}
	late := certified(below, k.Leaf(email, issuer), within(k), nil)
	const anchors = "each certificate of caPath is trusted by itself, as for podman and CRI-O; verify-images.md says so"
	rows = append(rows,
		judged{name: "a path that is too long", bundle: made(lower, nil), trust: long, reference: "leaf certificate verification failed", why: anchors},
		judged{name: "a root that has expired", bundle: late, trust: ended, reference: "leaf certificate verification failed", why: anchors},
	)
	check(t, trusting(k), rows)
}

// unknown is an extension that nobody knows.
func unknown(critical bool) pkix.Extension {
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 9, 9}, Critical: critical, Value: []byte{5, 0}}
}

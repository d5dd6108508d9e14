package policy

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/image"
)

// Describe says what the rules require of an image with a name, which may be nil. It reads the keys as
// Check does.
func (r Rules) Describe(named reference.Named) []image.Requirement {
	all := make([]image.Requirement, 0, len(r.requirements))
	for i := range r.requirements {
		all = append(all, r.requirements[i].describe(named))
	}
	return all
}

func (r *requirement) describe(named reference.Named) image.Requirement {
	d := image.Requirement{Type: r.kind}
	switch r.kind {
	case Accept:
		d.Means = "any image is accepted, with or without a signature"
		return d
	case Reject:
		d.Means = "no image is accepted: " + errRejected.Error()
		return d
	}
	d.Means = "an image is accepted with a signature of one of the keys"
	d.Identity = r.identity.describe(named)
	t, err := r.trust()
	if err != nil {
		d.Fault = err.Error()
	}
	switch {
	case r.pki != nil:
		d.Means = "an image is accepted with a signature of a certificate that is valid at the time of the check"
		d.Certificate = r.pki.describe()
	case r.fulcio != nil:
		d.Means = "an image is accepted with a signature of a certificate"
		d.Certificate = fmt.Sprintf("for %s, vouched for by %s, of the authority in %s", r.fulcio.email, r.fulcio.issuer, r.fulcio.ca.describe())
	}
	switch {
	case err != nil:
	case t.ring != nil:
		d.Keys = t.ring.names
	default:
		d.Keys, d.Logs = describeKeys(t.keys), describeKeys(t.rekor)
	}
	return d
}

// describe says which certificates count.
func (p *pki) describe() string {
	var whom []string
	if p.email != "" {
		whom = append(whom, p.email)
	}
	if p.host != "" {
		whom = append(whom, "the host "+p.host)
	}
	return fmt.Sprintf("for %s, of the authority in %s", strings.Join(whom, " and "), p.roots.describe())
}

// describe says where the contents of a source are.
func (s *source) describe() string {
	if len(s.paths) > 0 {
		return strings.Join(s.paths, ", ")
	}
	return s.field
}

func describeKeys(keys []namedKey) []string {
	var all []string
	for _, k := range keys {
		all = append(all, k.String())
	}
	return all
}

// String names a key by where it is, its type, and the SHA-256 of its form in DER, as
// `openssl pkey -pubin -outform DER | sha256sum` prints it.
func (k namedKey) String() string {
	kind := ""
	switch key := k.key.(type) {
	case *ecdsa.PublicKey:
		kind = "ECDSA " + key.Params().Name
	case ed25519.PublicKey:
		kind = "Ed25519"
	case *rsa.PublicKey:
		kind = fmt.Sprintf("RSA with %d bits", key.N.BitLen())
	}
	der, err := x509.MarshalPKIXPublicKey(k.key)
	if err != nil {
		return fmt.Sprintf("%s (%s)", k.name, kind)
	}
	return fmt.Sprintf("%s (%s, SHA-256 %x)", k.name, kind, sum(der))
}

// Explain says of each signature why it does not count for the image, "" if one of the requirements
// accepts it.
func (r Rules) Explain(subject Image, signatures []Signature) []string {
	all := make([]string, len(signatures))
	for i := range signatures {
		all[i] = "no requirement of the policy wants signatures"
		for j := range r.requirements {
			one := &r.requirements[j]
			if one.kind != SigstoreSigned && one.kind != SignedBy {
				continue
			}
			trust, err := one.trust()
			if err == nil {
				err = trust.accepts(subject, &signatures[i])
			}
			if err == nil {
				all[i] = ""
				break
			}
			all[i] = err.Error()
		}
	}
	return all
}

package policy

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// signed is a signature with what shows who has made it, from the annotations of cosign or from a bundle.
type signed struct {
	// signature is of data. payload is that part of data of which a log has the hash.
	signature, data, payload []byte
	// certificate, in DER, and chain, which leads from it to an authority, in PEM, are nil for none.
	certificate, chain []byte
	// records read the records of logs.
	records []readRecord
}

// readRecord reads a record of a log.
type readRecord func() (*record, error)

// maxRecords bounds the records that are read of one signature: each costs the check of several signatures.
const maxRecords = 32

// verify returns nil if a trusted key has made the signature. If logs are trusted, one of them must have recorded it. One
// record that shows this is enough, whatever the others are: anybody can leave them out.
func (t *trust) verify(s *signed) error {
	if t.rekor == nil {
		return t.verifyRecorded(s, nil)
	}
	if len(s.records) == 0 || len(s.records) > maxRecords {
		return fmt.Errorf("it has %d records of logs, want 1 to %d", len(s.records), maxRecords)
	}
	var refused []string
	for _, read := range s.records {
		found, err := t.logged(s, read)
		if err == nil {
			err = t.verifyRecorded(s, found)
		}
		if err == nil {
			return nil
		}
		refused = append(refused, err.Error())
	}
	slices.Sort(refused)
	return errors.New(strings.Join(slices.Compact(refused), "; "))
}

// verifyRecorded is verify with what a log has recorded of the signature, nil if no log is trusted.
func (t *trust) verifyRecorded(s *signed, found *entry) error {
	keys, err := t.keysOf(s, found)
	if err != nil {
		return err
	}
	return verifyAny(keys, s.data, s.signature)
}

// keysOf returns the keys that may have made a signature: the trusted ones, or that of its certificate. The certificate must
// have been valid when the log recorded the signature; without a log it must be valid now.
func (t *trust) keysOf(s *signed, found *entry) ([]namedKey, error) {
	switch {
	case t.ca == nil && found == nil:
		return t.keys, nil
	case t.ca == nil:
		return t.recorded(found)
	}
	at := time.Now()
	if found != nil {
		if !bytes.Equal(s.certificate, found.key) {
			return nil, errors.New("its record in the log is of another certificate")
		}
		at = found.at
	}
	key, err := t.ca.verify(s.certificate, s.chain, at)
	return []namedKey{{"certificate", key}}, err
}

// recorded returns the trusted key that the log has recorded.
func (t *trust) recorded(found *entry) ([]namedKey, error) {
	for _, k := range t.keys {
		if der, err := x509.MarshalPKIXPublicKey(k.key); err == nil && bytes.Equal(der, found.key) {
			return []namedKey{k}, nil
		}
	}
	return nil, errors.New("its record in the log is of a key that is not trusted")
}

// authority is one or more authorities, and the identity that their certificates must be for.
type authority struct {
	roots, between *x509.CertPool
	// issuer has vouched for the identity, as a Fulcio records it. It, email and host are "" for any.
	issuer, email, host string
}

func (f *fulcio) authority() (*authority, error) {
	roots, err := f.ca.certificates()
	if err != nil {
		return nil, fmt.Errorf("fulcio.%w", err)
	}
	return &authority{roots: roots, between: x509.NewCertPool(), issuer: f.issuer, email: f.email}, nil
}

func (p *pki) authority() (*authority, error) {
	roots, err := p.roots.certificates()
	if err != nil {
		return nil, fmt.Errorf("pki.%w", err)
	}
	between, err := p.between.certificates()
	if err != nil {
		return nil, fmt.Errorf("pki.%w", err)
	}
	return &authority{roots: roots, between: between, email: p.email, host: p.host}, nil
}

// certificates reads certificates in PEM.
func (s *source) certificates() (*x509.CertPool, error) {
	all, names, err := s.contents()
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for i, data := range all {
		if !pool.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s: %s has no certificate in PEM: %w", s.field, names[i], errs.Invalid)
		}
	}
	return pool, nil
}

// The extensions of Fulcio's certificates that have the issuer of the identity.
func issuerRaw() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1} }

func issuerDER() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8} }

// verify checks that the authority has issued a certificate for the identity, which was valid at a
// time, and returns its key.
func (a *authority) verify(der, chain []byte, at time.Time) (crypto.PublicKey, error) {
	if len(der) == 0 {
		return nil, errors.New("it has no certificate")
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("its certificate cannot be read: %w", err)
	}
	between := a.between.Clone()
	between.AppendCertsFromPEM(chain)
	options := x509.VerifyOptions{Roots: a.roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}
	if _, err := cert.Verify(options); err != nil {
		return nil, fmt.Errorf("its certificate is not valid at %s: %w", at.UTC().Format(time.RFC3339), err)
	}
	if a.email != "" && !slices.Contains(cert.EmailAddresses, a.email) {
		return nil, fmt.Errorf("its certificate is for %q, want %s", cert.EmailAddresses, a.email)
	}
	if a.host != "" && !slices.Contains(cert.DNSNames, a.host) {
		return nil, fmt.Errorf("its certificate is for the hosts %q, want %s", cert.DNSNames, a.host)
	}
	if a.issuer != "" {
		issuer, err := issuerOf(cert)
		if err != nil {
			return nil, err
		}
		if issuer != a.issuer {
			return nil, fmt.Errorf("its certificate is for an identity of %q, want %s", issuer, a.issuer)
		}
	}
	if err := checkKey(cert.PublicKey); err != nil {
		return nil, fmt.Errorf("the key of its certificate %w", err)
	}
	return cert.PublicKey, nil
}

// issuerOf returns who has vouched for the identity of a certificate. Both extensions must agree.
func issuerOf(cert *x509.Certificate) (string, error) {
	var found []string
	for _, ext := range cert.Extensions {
		switch {
		case ext.Id.Equal(issuerRaw()):
			found = append(found, string(ext.Value))
		case ext.Id.Equal(issuerDER()):
			var text string
			if rest, err := asn1.UnmarshalWithParams(ext.Value, &text, "utf8"); err != nil || len(rest) > 0 {
				return "", errors.New("its certificate has an issuer of the identity that cannot be read")
			}
			found = append(found, text)
		}
	}
	if len(found) == 0 || found[0] != found[len(found)-1] {
		return "", fmt.Errorf("its certificate names the issuers %q of the identity, want one", found)
	}
	return found[0], nil
}

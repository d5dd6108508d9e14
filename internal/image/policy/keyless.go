package policy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// authority is a Fulcio, and the identity that its certificates must be for.
type authority struct {
	roots         *x509.CertPool
	issuer, email string
}

func (f *fulcio) authority() (*authority, error) {
	all, names, err := f.ca.contents()
	if err != nil {
		return nil, fmt.Errorf("fulcio.%w", err)
	}
	a := &authority{roots: x509.NewCertPool(), issuer: f.issuer, email: f.email}
	for i, data := range all {
		if !a.roots.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("fulcio.%s: %s has no certificate in PEM: %w", f.ca.field, names[i], errs.Invalid)
		}
	}
	return a, nil
}

// logged checks that Rekor has recorded the signature, and returns the keys that may have made it: the
// trusted ones, or that of a certificate which was valid when it was recorded.
func (t *trust) logged(s *Signature, signature []byte) ([]namedKey, error) {
	entry, err := t.readEntry(s)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(entry.signature, signature) {
		return nil, errors.New("its record in the log is of another signature")
	}
	if !bytes.Equal(entry.hash, sum(s.Payload)) {
		return nil, errors.New("its record in the log is of another payload")
	}
	block, _ := pem.Decode(entry.publicKey)
	if block == nil {
		return nil, errors.New("its record in the log has no key in PEM")
	}
	if t.ca == nil {
		for _, k := range t.keys {
			if der, err := x509.MarshalPKIXPublicKey(k.key); err == nil && bytes.Equal(der, block.Bytes) {
				return []namedKey{k}, nil
			}
		}
		return nil, errors.New("its record in the log is of a key that is not trusted")
	}
	mine, _ := pem.Decode([]byte(s.Certificate))
	if mine == nil || !bytes.Equal(mine.Bytes, block.Bytes) {
		return nil, errors.New("its record in the log is of another certificate")
	}
	key, err := t.ca.verify(mine.Bytes, []byte(s.Chain), entry.at)
	return []namedKey{{"certificate", key}}, err
}

// entry is a record of Rekor.
type entry struct {
	signature, hash, publicKey []byte
	at                         time.Time
}

// readEntry reads the record that cosign attaches, and checks Rekor's signature of it.
func (t *trust) readEntry(s *Signature) (*entry, error) {
	if s.Rekor == "" {
		return nil, errors.New("it has no record of a log")
	}
	if t.rekor == nil {
		return nil, errors.New("no key of a log is trusted")
	}
	var record struct {
		SignedEntryTimestamp []byte
		Payload              struct {
			// Rekor signs these, with the keys in this order, which is the canonical one.
			Body           string `json:"body"`
			IntegratedTime int64  `json:"integratedTime"`
			LogID          string `json:"logID"`
			LogIndex       int64  `json:"logIndex"`
		}
	}
	if err := json.Unmarshal([]byte(s.Rekor), &record); err != nil {
		return nil, fmt.Errorf("its record of the log is not Rekor's: %w", err)
	}
	p := record.Payload
	if !isBase64(p.Body) || !isHex(p.LogID) { // what is signed has no characters that JSON escapes
		return nil, errors.New("its record of the log is not Rekor's")
	}
	signed := fmt.Sprintf(`{"body":"%s","integratedTime":%d,"logID":"%s","logIndex":%d}`, p.Body, p.IntegratedTime, p.LogID, p.LogIndex)
	if verifyAny(t.rekor, []byte(signed), record.SignedEntryTimestamp) != nil {
		return nil, errors.New("its record of the log is not signed by a trusted log")
	}
	body, err := base64.StdEncoding.DecodeString(p.Body)
	if err != nil {
		return nil, errors.New("its record of the log is not Rekor's")
	}
	return readBody(body, time.Unix(p.IntegratedTime, 0))
}

func readBody(data []byte, at time.Time) (*entry, error) {
	var body struct {
		Kind string `json:"kind"`
		Spec struct {
			Data struct {
				Hash struct {
					Algorithm string `json:"algorithm"`
					Value     string `json:"value"`
				} `json:"hash"`
			} `json:"data"`
			Signature struct {
				Content   []byte `json:"content"`
				PublicKey struct {
					Content []byte `json:"content"`
				} `json:"publicKey"`
			} `json:"signature"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, fmt.Errorf("its record of the log is not Rekor's: %w", err)
	}
	if body.Kind != "hashedrekord" || body.Spec.Data.Hash.Algorithm != "sha256" {
		return nil, fmt.Errorf("its record of the log is a %q with %q; want a hashedrekord with sha256", body.Kind, body.Spec.Data.Hash.Algorithm)
	}
	hash, err := hex.DecodeString(body.Spec.Data.Hash.Value)
	if err != nil {
		return nil, errors.New("its record of the log has no hash")
	}
	return &entry{body.Spec.Signature.Content, hash, body.Spec.Signature.PublicKey.Content, at}, nil
}

func isBase64(text string) bool {
	_, err := base64.StdEncoding.Strict().DecodeString(text)
	return err == nil && !bytes.ContainsAny([]byte(text), "\r\n")
}

func isHex(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil
}

// The extensions of Fulcio's certificates that have the issuer of the identity.
func issuerRaw() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1} }

func issuerDER() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8} }

// verify checks that the authority has issued a certificate for the identity, which was valid at a
// time, and returns its key.
func (a *authority) verify(der, chain []byte, at time.Time) (crypto.PublicKey, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("its certificate cannot be read: %w", err)
	}
	between := x509.NewCertPool()
	between.AppendCertsFromPEM(chain)
	options := x509.VerifyOptions{Roots: a.roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}
	if _, err := cert.Verify(options); err != nil {
		return nil, fmt.Errorf("its certificate was not valid at %s, when the log recorded it: %w", at.UTC().Format(time.RFC3339), err)
	}
	if !slices.Contains(cert.EmailAddresses, a.email) {
		return nil, fmt.Errorf("its certificate is for %q, want %s", cert.EmailAddresses, a.email)
	}
	issuer, err := issuerOf(cert)
	if err != nil {
		return nil, err
	}
	if issuer != a.issuer {
		return nil, fmt.Errorf("its certificate is for an identity of %q, want %s", issuer, a.issuer)
	}
	if _, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok {
		return nil, fmt.Errorf("its certificate has a key of type %T, want ECDSA", cert.PublicKey)
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

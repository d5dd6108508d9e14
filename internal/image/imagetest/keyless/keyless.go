// Package keyless is a local Fulcio and a local Rekor for tests: an authority that issues certificates for identities, and
// a log that records signatures. It knows the formats of both and of bundles, and nothing of who reads them.
package keyless

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// Keyless is an authority and a log.
type Keyless struct {
	CA, Rekor *imagetest.Signer
	// Root is the certificate of the authority. It is valid for two hours before and after Now.
	Root *x509.Certificate
	Now  time.Time
}

// New makes an authority and a log with new keys, at a fixed time.
func New() *Keyless { return At(time.Unix(1_700_000_000, 0)) }

// At makes an authority and a log with new keys, at a time.
func At(now time.Time) *Keyless {
	k := &Keyless{CA: imagetest.NewSigner(), Rekor: imagetest.NewSigner(), Now: now}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fulcio"}, NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(2 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	k.Root = parse(must(x509.CreateCertificate(rand.Reader, template, template, &k.CA.Key().PublicKey, k.CA.Key())))
	return k
}

// Between returns an authority whose certificate k has issued, with k's log. change changes the certificate, if it is not nil.
func (k *Keyless) Between(change func(*x509.Certificate)) *Keyless {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "between"}, NotBefore: k.Now.Add(-time.Hour), NotAfter: k.Now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if change != nil {
		change(template)
	}
	key, der := k.Certify(template)
	return &Keyless{CA: key, Rekor: k.Rekor, Root: parse(der), Now: k.Now}
}

// RootPEM is the certificate of the authority in PEM.
func (k *Keyless) RootPEM() []byte { return PEM(k.Root.Raw) }

// PEM is a certificate in PEM.
func PEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// IssuerRaw is the extension of Fulcio's certificates with the issuer of the identity as it is, IssuerDER that with the
// issuer in DER.
func IssuerRaw(issuer string) pkix.Extension {
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte(issuer)}
}

// IssuerDER is the newer one of the two; see IssuerRaw.
func IssuerDER(issuer string) pkix.Extension {
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}, Value: must(asn1.MarshalWithParams(issuer, "utf8"))}
}

// Leaf is the template of a certificate for an identity, valid for ten minutes.
func (k *Keyless) Leaf(email, issuer string) *x509.Certificate {
	return &x509.Certificate{
		NotBefore: k.Now, NotAfter: k.Now.Add(10 * time.Minute), EmailAddresses: []string{email},
		ExtKeyUsage:     []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{IssuerRaw(issuer)},
	}
}

// Issue makes a key and a certificate for an identity, in DER.
func (k *Keyless) Issue(email, issuer string) (key *imagetest.Signer, cert []byte) {
	return k.Certify(k.Leaf(email, issuer))
}

// Certify makes a key and a certificate of the authority, in DER.
func (k *Keyless) Certify(template *x509.Certificate) (key *imagetest.Signer, cert []byte) {
	key = imagetest.NewSigner()
	return key, k.CertifyKey(template, &key.Key().PublicKey)
}

// CertifyKey makes a certificate of the authority for a key, in DER.
func (k *Keyless) CertifyKey(template *x509.Certificate, public any) []byte {
	template.SerialNumber, template.KeyUsage = big.NewInt(2), template.KeyUsage|x509.KeyUsageDigitalSignature
	return must(x509.CreateCertificate(rand.Reader, template, k.Root, public, k.CA.Key()))
}

// index is that of each record in the log.
const index = 7

// LogID is the identity of the log: the hash of its key.
func (k *Keyless) LogID() []byte {
	hash := sha256.Sum256(must(x509.MarshalPKIXPublicKey(&k.Rekor.Key().PublicKey)))
	return hash[:]
}

// Promise is what the log signs at once of a record.
func (k *Keyless) Promise(body []byte, at time.Time) []byte {
	return k.Rekor.Sign(fmt.Appendf(nil, `{"body":"%s","integratedTime":%d,"logID":"%x","logIndex":%d}`, encode(body), at.Unix(), k.LogID(), index))
}

// Annotation is the record of a claim as cosign attaches it to a signature. verifier is the certificate or the public key,
// in PEM.
func (k *Keyless) Annotation(signature, payload, verifier []byte, at time.Time) string {
	return k.AnnotationOf(HashedRecord(crypto.SHA256, signature, payload, verifier), at)
}

// AnnotationOf is Annotation with a body.
func (k *Keyless) AnnotationOf(body []byte, at time.Time) string {
	return string(must(json.Marshal(map[string]any{
		"SignedEntryTimestamp": k.Promise(body, at),
		"Payload":              map[string]any{"body": body, "integratedTime": at.Unix(), "logIndex": index, "logID": hex.EncodeToString(k.LogID())},
	})))
}

// HashedRecord is the body of a record of a claim, with the hash with which it was signed.
func HashedRecord(hash crypto.Hash, signature, payload, verifier []byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"hashedrekord","spec":{"data":{"hash":{"algorithm":"%s","value":"%x"}},"signature":{"content":"%s","publicKey":{"content":"%s"}}}}`,
		map[crypto.Hash]string{crypto.SHA256: "sha256", crypto.SHA384: "sha384", crypto.SHA512: "sha512"}[hash], Sum(hash, payload), encode(signature), encode(verifier))
}

// Sum is the hash of data.
func Sum(hash crypto.Hash, data []byte) []byte {
	h := hash.New()
	h.Write(data)
	return h.Sum(nil)
}

func encode(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

func parse(der []byte) *x509.Certificate { return must(x509.ParseCertificate(der)) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

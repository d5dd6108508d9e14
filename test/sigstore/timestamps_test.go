package sigstore

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"testing"
	"time"

	ct "github.com/google/certificate-transparency-go"
	"github.com/google/certificate-transparency-go/tls"
	"github.com/google/certificate-transparency-go/x509util"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// TestTimestamps: timestamps of authorities (RFC 3161), which take the place of the log's time with version 2 of Rekor.
func TestTimestamps(t *testing.T) {
	virtual, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	k := keyless.At(time.Now().Add(-time.Minute).Truncate(time.Second))
	stamped := trusting(k)
	stamped.tsas = virtual.TimestampingAuthorities()
	alone := *stamped
	alone.noLog = true
	authority := virtual.FulcioCertificateAuthorities()[0].(*root.FulcioCertificateAuthority)
	newer := &trust{virtual: virtual, root: authority.Root, between: authority.Intermediates, tsas: stamped.tsas}
	// of is a bundle with a timestamp of a signature, "" for that of the bundle.
	of := func(signature string, change func(*keyless.Parts)) []byte {
		var made []byte
		data := certified(k, k.Leaf(email, issuer), within(k), func(p *keyless.Parts) {
			made = p.Signatures[0]
			if change != nil {
				change(p)
			}
		})
		if signature != "" {
			made = []byte(signature)
		}
		stamp, err := virtual.TimestampResponse(made)
		if err != nil {
			t.Fatal(err)
		}
		return object(t, data, func(b map[string]any) {
			b["verificationMaterial"].(map[string]any)["timestampVerificationData"] = map[string]any{
				"rfc3161Timestamps": []any{map[string]any{"signedTimestamp": stamp}},
			}
		})
	}
	const unread = "policy.json has no field for authorities of timestamps, so berth needs the log's time; verify-images.md says so"
	check(t, stamped, []judged{
		{name: "beside the log's time", bundle: of("", nil)},
		{name: "of another signature", bundle: of("another", nil), reference: "threshold not met", why: unread},
		{name: "none", bundle: made(k, nil), reference: "threshold not met", why: unread},
		{name: "without a record", bundle: of("", func(p *keyless.Parts) { p.Records = nil }), trust: &alone, berth: "0 records", why: unread},
		{name: "with a record without a promise", bundle: of("", func(p *keyless.Parts) { delete(p.Records[0], "inclusionPromise") }), berth: "no signed time", why: unread},
		{name: "with a record of version 2 of Rekor", bundle: secondVersion(t, virtual), trust: newer, berth: "no signed time", why: unread},
	})
}

// secondVersion is a bundle with a record of version 2 of Rekor, and a timestamp.
func secondVersion(t *testing.T, virtual *ca.VirtualSigstore) []byte {
	t.Helper()
	entity, err := virtual.AttestHashedRekordV2(email, issuer, keyless.Statement(image, imageDigest()))
	if err != nil {
		t.Fatal(err)
	}
	content, err := entity.SignatureContent()
	if err != nil {
		t.Fatal(err)
	}
	who, err := entity.VerificationContent()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := entity.TlogEntries()
	if err != nil {
		t.Fatal(err)
	}
	stamps, err := entity.Timestamps()
	if err != nil {
		t.Fatal(err)
	}
	payload, err := base64.StdEncoding.DecodeString(content.EnvelopeContent().RawEnvelope().Payload)
	if err != nil {
		t.Fatal(err)
	}
	data, err := protojson.Marshal(&protobundle.Bundle{
		MediaType: imagetest.BundleType,
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content:     &protobundle.VerificationMaterial_Certificate{Certificate: &protocommon.X509Certificate{RawBytes: who.Certificate().Raw}},
			TlogEntries: []*protorekor.TransparencyLogEntry{entries[0].TransparencyLogEntry()},
			TimestampVerificationData: &protobundle.TimestampVerificationData{
				Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamps[0]}},
			},
		},
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload: payload, PayloadType: keyless.StatementType, Signatures: []*protodsse.Signature{{Sig: content.Signature()}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestCertificateTimestamps: berth does not look for the records of certificates in logs of certificates.
func TestCertificateTimestamps(t *testing.T) {
	k, log, other := keyless.New(), imagetest.NewSigner(), imagetest.NewSigner()
	tr := trusting(k)
	tr.ctlogs = map[string]*root.TransparencyLog{hex.EncodeToString(keyID(t, log)): {
		ID: keyID(t, log), HashFunc: crypto.SHA256, SignatureHashFunc: crypto.SHA256, PublicKey: &log.Key().PublicKey,
	}}
	const unread = "policy.json has no field for logs of certificates: podman and CRI-O do not look, either; verify-images.md says so"
	check(t, tr, []judged{
		{name: "the log", bundle: stampedCertificate(t, k, log, log)},
		{name: "another log", bundle: stampedCertificate(t, k, other, other), reference: "unable to meet threshold", why: unread},
		{name: "a wrong signature of the log", bundle: stampedCertificate(t, k, log, other), reference: "unable to meet threshold", why: unread},
		{name: "none", bundle: made(k, nil), reference: "unable to meet threshold", why: unread},
	})
}

// stampedCertificate is a bundle whose certificate has a timestamp of a log of certificates, made with a key.
func stampedCertificate(t *testing.T, k *keyless.Keyless, log, by *imagetest.Signer) []byte {
	t.Helper()
	key, template := imagetest.NewSigner(), k.Leaf(email, issuer)
	before, err := x509.ParseCertificate(k.CertifyKey(template, &key.Key().PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	stamp := ct.SignedCertificateTimestamp{SCTVersion: ct.V1, LogID: ct.LogID{KeyID: [32]byte(keyID(t, log))}, Timestamp: uint64(k.Now.UnixMilli())}
	signs, err := ct.SerializeSCTSignatureInput(stamp, ct.LogEntry{Leaf: ct.MerkleTreeLeaf{
		Version: ct.V1, LeafType: ct.TimestampedEntryLeafType,
		TimestampedEntry: &ct.TimestampedEntry{
			Timestamp: stamp.Timestamp, EntryType: ct.PrecertLogEntryType,
			PrecertEntry: &ct.PreCert{IssuerKeyHash: sha256.Sum256(k.Root.RawSubjectPublicKeyInfo), TBSCertificate: before.RawTBSCertificate},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	stamp.Signature = ct.DigitallySigned{Algorithm: tls.SignatureAndHashAlgorithm{Hash: tls.SHA256, Signature: tls.ECDSA}, Signature: by.Sign(signs)}
	list, err := x509util.MarshalSCTsIntoSCTList([]*ct.SignedCertificateTimestamp{&stamp})
	if err != nil {
		t.Fatal(err)
	}
	data, err := tls.Marshal(*list)
	if err != nil {
		t.Fatal(err)
	}
	value, err := asn1.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}, Value: value})
	cert := k.CertifyKey(template, &key.Key().PublicKey)
	return k.Bundle(keyless.Statement(image, imageDigest()), key, cert, within(k)).JSON()
}

// keyID is the identity of a log.
func keyID(t *testing.T, log *imagetest.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(&log.Key().PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	return sum[:]
}

package keyless

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// StatementType is the media type of a statement of in-toto, SignPredicate the type of a statement that signs an image.
const (
	StatementType = "application/vnd.in-toto+json"
	SignPredicate = "https://sigstore.dev/cosign/sign/v1"
)

// Statement is one that signs an image.
func Statement(name string, dgst digest.Digest) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":%q,"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		name, dgst.Encoded(), SignPredicate)
}

// Parts are those of a bundle that a test changes.
type Parts struct {
	MediaType string
	// Payload and PayloadType are those of the envelope, Signatures its signatures. Certificate, in DER, is nil for a bundle
	// of a key.
	Payload     []byte
	PayloadType string
	Signatures  [][]byte
	Certificate []byte
	// Records are those of the log, in the form of the bundle.
	Records []map[string]any
}

// JSON is the bundle, as cosign 3 writes it.
func (p *Parts) JSON() []byte {
	material := map[string]any{"tlogEntries": p.Records}
	if p.Certificate != nil {
		material["certificate"] = map[string]any{"rawBytes": p.Certificate}
	} else {
		material["publicKey"] = map[string]any{"hint": "key"}
	}
	signatures := []map[string]any{}
	for _, signature := range p.Signatures {
		signatures = append(signatures, map[string]any{"sig": signature, "keyid": ""})
	}
	return must(json.Marshal(map[string]any{
		"mediaType": p.MediaType, "verificationMaterial": material,
		"dsseEnvelope": map[string]any{"payload": p.Payload, "payloadType": p.PayloadType, "signatures": signatures},
	}))
}

// Field is a field of the first record.
func (p *Parts) Field(name string) map[string]any { return p.Records[0][name].(map[string]any) }

// Encoded is what a signature of an envelope signs.
func Encoded(payloadType string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
}

// Bundle signs a statement with a key, and records that in the log. The certificate is in DER, nil for a bundle of the key.
func (k *Keyless) Bundle(payload []byte, key *imagetest.Signer, certificate []byte, at time.Time) *Parts {
	verifier := key.PublicKey()
	if certificate != nil {
		verifier = PEM(certificate)
	}
	return k.BundleOf(payload, key.Sign(Encoded(StatementType, payload)), certificate, verifier, at)
}

// BundleOf is a bundle with a signature of a statement, and a record of it with the verifier, in PEM.
func (k *Keyless) BundleOf(payload, signature, certificate, verifier []byte, at time.Time) *Parts {
	p := &Parts{
		MediaType: imagetest.BundleType, Payload: payload, PayloadType: StatementType, Signatures: [][]byte{signature}, Certificate: certificate,
	}
	p.Records = []map[string]any{k.Record(EnvelopeRecord(signature, payload, verifier), at)}
	return p
}

// EnvelopeRecord is the body of a record of an envelope.
func EnvelopeRecord(signature, payload, verifier []byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"dsse","spec":{"envelopeHash":{"algorithm":"sha256","value":"%x"},"payloadHash":{"algorithm":"sha256","value":"%x"},"signatures":[{"signature":%q,"verifier":%q}]}}`,
		sha256.Sum256([]byte("envelope")), sha256.Sum256(payload), encode(signature), encode(verifier))
}

// Record records a body, as the third of five records.
func (k *Keyless) Record(body []byte, at time.Time) map[string]any {
	leaves := [][]byte{LeafOf([]byte("a")), LeafOf([]byte("b")), LeafOf(body), LeafOf([]byte("c")), LeafOf([]byte("d"))}
	return map[string]any{
		"logIndex": fmt.Sprint(index), "logId": map[string]any{"keyId": k.LogID()}, "integratedTime": fmt.Sprint(at.Unix()), "canonicalizedBody": body,
		"kindVersion":      map[string]any{"kind": "dsse", "version": "0.0.1"},
		"inclusionPromise": map[string]any{"signedEntryTimestamp": k.Promise(body, at)},
		"inclusionProof": map[string]any{
			"logIndex": "2", "treeSize": "5", "rootHash": rootOf(leaves), "hashes": pathOf(2, leaves),
			"checkpoint": map[string]any{"envelope": k.Checkpoint(len(leaves), rootOf(leaves))},
		},
	}
}

// Checkpoint is a root that the log has signed.
func (k *Keyless) Checkpoint(size int, root []byte) string {
	text := fmt.Sprintf("log.test - 42\n%d\n%s\n", size, encode(root))
	return text + "\n" + k.NoteLine(text)
}

// NoteLine is the line with which the log signs the text of a note.
func (k *Keyless) NoteLine(text string) string {
	return fmt.Sprintf("\u2014 log.test %s\n", encode(append(k.LogID()[:4:4], k.Rekor.Sign([]byte(text))...)))
}

// LeafOf is the hash of a record in the tree of RFC 6962, section 2.1.
func LeafOf(data []byte) []byte { return sum(append([]byte{0}, data...)) }

func rootOf(leaves [][]byte) []byte {
	if len(leaves) == 1 {
		return leaves[0]
	}
	at := split(len(leaves))
	return sum(bytes.Join([][]byte{{1}, rootOf(leaves[:at]), rootOf(leaves[at:])}, nil))
}

func pathOf(n int, leaves [][]byte) [][]byte {
	if len(leaves) == 1 {
		return nil
	}
	at := split(len(leaves))
	if n < at {
		return append(pathOf(n, leaves[:at]), rootOf(leaves[at:]))
	}
	return append(pathOf(n-at, leaves[at:]), rootOf(leaves[:at]))
}

// split is the largest power of two below n.
func split(n int) int {
	at := 1
	for at*2 < n {
		at *= 2
	}
	return at
}

func sum(data []byte) []byte {
	hash := sha256.Sum256(data)
	return hash[:]
}

package policy

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// record is a record of Rekor as it is attached to a signature. Nothing of it is trusted before readEntry.
type record struct {
	// kind is the type that the record must have. body is the record, in base64.
	kind, body string
	// logID, in hexadecimal, logIndex and integratedTime, in seconds since 1970, are what the log says of it.
	logID                    string
	logIndex, integratedTime int64
	// promise is the log's signature of all of these: the signed entry timestamp.
	promise []byte
	// proof shows that the log has kept the promise. The annotations of cosign have none.
	proof *proof
}

// proof is a proof of inclusion: the path from a record to the root of the log's tree, and a note with which the log signs
// the root.
type proof struct {
	index      int64
	path       tlog.RecordProof
	checkpoint string
}

// entry is a record that the log has signed.
type entry struct {
	// signature is what was recorded, hash that of its payload, and key the public key or the certificate, in DER.
	signature, hash, key []byte
	algorithm            crypto.Hash
	at                   time.Time
}

// readAnnotation reads the record that cosign attaches to a signature, "" for none.
func readAnnotation(text string) (*record, error) {
	if text == "" {
		return nil, errors.New("it has no record of a log")
	}
	var attached struct {
		SignedEntryTimestamp []byte
		Payload              struct {
			Body           string `json:"body"`
			IntegratedTime int64  `json:"integratedTime"`
			LogID          string `json:"logID"`
			LogIndex       int64  `json:"logIndex"`
		}
	}
	if err := json.Unmarshal([]byte(text), &attached); err != nil {
		return nil, fmt.Errorf("its record of the log is not Rekor's: %w", err)
	}
	p := attached.Payload
	return &record{
		kind: "hashedrekord", body: p.Body, logID: p.LogID, logIndex: p.LogIndex, integratedTime: p.IntegratedTime,
		promise: attached.SignedEntryTimestamp,
	}, nil
}

// logged checks that a record of a trusted log is of the signature, and returns its entry.
func (t *trust) logged(s *signed, read readRecord) (*entry, error) {
	attached, err := read()
	if err != nil {
		return nil, err
	}
	found, err := t.readEntry(attached)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(found.signature, s.signature) {
		return nil, errors.New("its record in the log is of another signature")
	}
	h := found.algorithm.New()
	h.Write(s.payload)
	if !bytes.Equal(found.hash, h.Sum(nil)) {
		return nil, errors.New("its record in the log is of another payload")
	}
	return found, nil
}

// readEntry checks the log's signatures of a record, and reads it.
func (t *trust) readEntry(r *record) (*entry, error) {
	if !isBase64(r.body) || !isHex(r.logID) { // what is signed has no characters that JSON escapes
		return nil, errors.New("its record of the log is not Rekor's")
	}
	// Rekor signs these, with the keys in this order, which is the canonical one.
	promised := fmt.Sprintf(`{"body":"%s","integratedTime":%d,"logID":"%s","logIndex":%d}`, r.body, r.integratedTime, r.logID, r.logIndex)
	log := slices.IndexFunc(t.rekor, func(k namedKey) bool { return verify(k.key, []byte(promised), r.promise) })
	if log < 0 {
		return nil, errors.New("its record of the log is not signed by a trusted log")
	}
	body, err := base64.StdEncoding.DecodeString(r.body)
	if err != nil {
		return nil, errors.New("its record of the log is not Rekor's")
	}
	if r.proof != nil {
		if err := r.proof.includes(body, t.rekor[log]); err != nil {
			return nil, err
		}
	}
	return readBody(body, r.kind, time.Unix(r.integratedTime, 0))
}

// bodyVersion is the version of the records that are read: in another one the fields may have other meanings.
const bodyVersion = "0.0.1"

// readBody reads a record of the types hashedrekord and dsse.
func readBody(data []byte, kind string, at time.Time) (*entry, error) {
	type hash struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"value"`
	}
	var body struct {
		Kind    string `json:"kind"`
		Version string `json:"apiVersion"`
		Spec    struct {
			// These are of a hashedrekord.
			Data struct {
				Hash hash `json:"hash"`
			} `json:"data"`
			Signature struct {
				Content   []byte `json:"content"`
				PublicKey struct {
					Content []byte `json:"content"`
				} `json:"publicKey"`
			} `json:"signature"`
			// These are of a dsse.
			PayloadHash hash `json:"payloadHash"`
			Signatures  []struct {
				Signature []byte `json:"signature"`
				Verifier  []byte `json:"verifier"`
			} `json:"signatures"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, fmt.Errorf("its record of the log is not Rekor's: %w", err)
	}
	spec := &body.Spec
	of, signature, key := spec.Data.Hash, spec.Signature.Content, spec.Signature.PublicKey.Content
	if kind == "dsse" && len(spec.Signatures) == 1 {
		of, signature, key = spec.PayloadHash, spec.Signatures[0].Signature, spec.Signatures[0].Verifier
	}
	algorithm := algorithms(kind)[of.Algorithm]
	if body.Kind != kind || body.Version != bodyVersion || algorithm == 0 {
		return nil, fmt.Errorf("its record of the log is a %q of version %q with %q; want a %s of version %s, of one signature with sha256",
			body.Kind, body.Version, of.Algorithm, kind, bodyVersion)
	}
	value, err := hex.DecodeString(of.Value)
	if err != nil {
		return nil, errors.New("its record of the log has no hash")
	}
	block, _ := pem.Decode(key)
	if block == nil {
		return nil, errors.New("its record in the log has no key in PEM")
	}
	return &entry{signature, value, block.Bytes, algorithm, at}, nil
}

// algorithms are the hashes of the payload that a record of a type may have. Rekor records envelopes with SHA-256, whatever
// their signature is.
func algorithms(kind string) map[string]crypto.Hash {
	if kind == "dsse" {
		return map[string]crypto.Hash{"sha256": crypto.SHA256}
	}
	return map[string]crypto.Hash{"sha256": crypto.SHA256, "sha384": crypto.SHA384, "sha512": crypto.SHA512}
}

// maxTree bounds the records of a log: tlog computes with twice as many.
const maxTree = 1 << 61

// includes checks that a record is in the tree whose root a log has signed.
func (p *proof) includes(body []byte, log namedKey) error {
	open, err := note.Open([]byte(p.checkpoint), onlyLog(log))
	if err != nil {
		return fmt.Errorf("its proof of inclusion has no checkpoint that the log has signed: %w", err)
	}
	// The first lines are the name of the log, the size of the tree, and its root.
	lines := strings.SplitN(open.Text, "\n", 4)
	if len(lines) < 4 {
		return errors.New("its proof of inclusion has a checkpoint of less than three lines")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size > maxTree {
		return fmt.Errorf("its proof of inclusion has a checkpoint with the size %q", lines[1])
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return fmt.Errorf("its proof of inclusion has a checkpoint with the root %q", lines[2])
	}
	if err := tlog.CheckRecord(p.path, size, root, p.index, tlog.RecordHash(body)); err != nil {
		return fmt.Errorf("its proof of inclusion does not lead to the root that the log has signed: %w", err)
	}
	return nil
}

// onlyLog finds the key of a log by what the lines of a signed note say of it. Every name is accepted: the name is the log's
// own, and the key decides. Signatures of others, such as witnesses, are skipped.
type onlyLog namedKey

// Verifier implements note.Verifiers.
func (k onlyLog) Verifier(name string, hash uint32) (note.Verifier, error) {
	der, err := x509.MarshalPKIXPublicKey(k.key)
	if err != nil || binary.BigEndian.Uint32(sum(der)) != hash {
		return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
	}
	return &logKey{name, hash, namedKey(k)}, nil
}

// logKey is the key of a log for notes.
type logKey struct {
	name string
	hash uint32
	key  namedKey
}

// Name implements note.Verifier.
func (k *logKey) Name() string { return k.name }

// KeyHash implements note.Verifier.
func (k *logKey) KeyHash() uint32 { return k.hash }

// Verify implements note.Verifier.
func (k *logKey) Verify(msg, sig []byte) bool { return verify(k.key.key, msg, sig) }

func isBase64(text string) bool {
	_, err := base64.StdEncoding.Strict().DecodeString(text)
	return err == nil && !bytes.ContainsAny([]byte(text), "\r\n")
}

func isHex(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil
}

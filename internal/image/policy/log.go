package policy

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
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

// logged checks that a trusted log has recorded the signature, and returns its entry.
func (t *trust) logged(s *signed) (*entry, error) {
	attached, err := s.record()
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
	if !bytes.Equal(found.hash, sum(s.payload)) {
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
	if verifyAny(t.rekor, []byte(promised), r.promise) != nil {
		return nil, errors.New("its record of the log is not signed by a trusted log")
	}
	body, err := base64.StdEncoding.DecodeString(r.body)
	if err != nil {
		return nil, errors.New("its record of the log is not Rekor's")
	}
	if r.proof != nil {
		if err := t.included(body, r.proof); err != nil {
			return nil, err
		}
	}
	return readBody(body, r.kind, time.Unix(r.integratedTime, 0))
}

// readBody reads a record of the types hashedrekord and dsse.
func readBody(data []byte, kind string, at time.Time) (*entry, error) {
	type hash struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"value"`
	}
	var body struct {
		Kind string `json:"kind"`
		Spec struct {
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
	if body.Kind != kind || of.Algorithm != "sha256" {
		return nil, fmt.Errorf("its record of the log is a %q with %q; want a %s of one signature with sha256", body.Kind, of.Algorithm, kind)
	}
	value, err := hex.DecodeString(of.Value)
	if err != nil {
		return nil, errors.New("its record of the log has no hash")
	}
	block, _ := pem.Decode(key)
	if block == nil {
		return nil, errors.New("its record in the log has no key in PEM")
	}
	return &entry{signature, value, block.Bytes, at}, nil
}

// maxTree bounds the records of a log: tlog computes with twice as many.
const maxTree = 1 << 61

// included checks that a record is in the tree whose root a trusted log has signed.
func (t *trust) included(body []byte, p *proof) error {
	open, err := note.Open([]byte(p.checkpoint), logKeys(t.rekor))
	if err != nil {
		return fmt.Errorf("its proof of inclusion has no checkpoint that a trusted log has signed: %w", err)
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

// logKeys finds the keys of logs by what the lines of a signed note say of them. Every name is accepted: the name is the
// log's own, and the key decides.
type logKeys []namedKey

// Verifier implements note.Verifiers.
func (all logKeys) Verifier(name string, hash uint32) (note.Verifier, error) {
	for _, k := range all {
		der, err := x509.MarshalPKIXPublicKey(k.key)
		if err == nil && binary.BigEndian.Uint32(sum(der)) == hash {
			return &logKey{name, hash, k}, nil
		}
	}
	return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
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

package policy

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/mod/sumdb/tlog"
)

// signPredicate is the type of a statement that signs an image, and attests nothing else about it.
const signPredicate = "https://sigstore.dev/cosign/sign/v1"

// statementType is the media type of a statement of in-toto.
const statementType = "application/vnd.in-toto+json"

// The media types of bundles of version 0.3. The second one is its older form.
const (
	bundleType      = "application/vnd.dev.sigstore.bundle.v0.3+json"
	bundleTypeOlder = "application/vnd.dev.sigstore.bundle+json;version=0.3"
)

// bundle has the parts of a bundle of sigstore, version 0.3, that are read here. Numbers may be in quotes, and a number
// that is 0 may be missing, as in every message of protobuf in JSON.
type bundle struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		Certificate struct {
			RawBytes []byte `json:"rawBytes"`
		} `json:"certificate"`
		Records []bundleRecord `json:"tlogEntries"`
	} `json:"verificationMaterial"`
	Envelope *struct {
		Payload     []byte `json:"payload"`
		PayloadType string `json:"payloadType"`
		Signatures  []struct {
			Sig []byte `json:"sig"`
		} `json:"signatures"`
	} `json:"dsseEnvelope"`
}

// bundleRecord is a record of Rekor in a bundle.
type bundleRecord struct {
	LogIndex json.Number `json:"logIndex"`
	LogID    struct {
		KeyID []byte `json:"keyId"`
	} `json:"logId"`
	IntegratedTime   json.Number `json:"integratedTime"`
	InclusionPromise struct {
		SignedEntryTimestamp []byte `json:"signedEntryTimestamp"`
	} `json:"inclusionPromise"`
	InclusionProof struct {
		LogIndex   json.Number `json:"logIndex"`
		Hashes     [][]byte    `json:"hashes"`
		Checkpoint struct {
			Envelope string `json:"envelope"`
		} `json:"checkpoint"`
	} `json:"inclusionProof"`
	CanonicalizedBody []byte `json:"canonicalizedBody"`
}

// acceptsBundle is accepts for a bundle: a DSSE envelope with a statement of in-toto.
func (t *trust) acceptsBundle(image Image, data []byte) error {
	var b bundle
	if err := json.Unmarshal(data, &b); err != nil {
		return fmt.Errorf("it is not a bundle of sigstore: %w", err)
	}
	if b.MediaType != bundleType && b.MediaType != bundleTypeOlder {
		return fmt.Errorf("its bundle has the media type %q, which is not version 0.3", b.MediaType)
	}
	if b.Envelope == nil || len(b.Envelope.Signatures) != 1 || b.Envelope.PayloadType != statementType {
		return errors.New("its bundle has no envelope of one signature with a statement of in-toto")
	}
	e := b.Envelope
	var records []readRecord
	for i := range b.Material.Records {
		records = append(records, b.Material.Records[i].read)
	}
	if err := t.verify(&signed{
		signature:   e.Signatures[0].Sig,
		data:        fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload),
		payload:     e.Payload,
		certificate: b.Material.Certificate.RawBytes,
		records:     records,
	}); err != nil {
		return err
	}
	return t.acceptsStatement(image, e.Payload)
}

// acceptsStatement returns nil if a statement signs the image. The signature of the statement has been checked.
func (t *trust) acceptsStatement(image Image, data []byte) error {
	var statement struct {
		Type          string `json:"_type"`
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Name   string            `json:"name"`
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(data, &statement); err != nil {
		return fmt.Errorf("its statement is not JSON: %w", err)
	}
	if !strings.HasPrefix(statement.Type, "https://in-toto.io/Statement/") || statement.PredicateType != signPredicate {
		return fmt.Errorf("it states %q of the image, and does not sign it", statement.PredicateType)
	}
	why := "it is of no image"
	for _, subject := range statement.Subject {
		dgst := digest.NewDigestFromEncoded(digest.SHA256, subject.Digest["sha256"])
		switch {
		case !slices.Contains(image.Digests, dgst):
			why = fmt.Sprintf("it is of %s, not of this image", dgst)
		case subject.Name != "":
			if why = t.identity.accepts(image.Name, subject.Name); why == "" {
				return nil
			}
		case image.Unnamed:
			return nil
		default:
			why = "it names no repository: sign with --new-bundle-format=false, or set image.unnamed_signatures"
		}
	}
	return errors.New(why)
}

// read returns the record in the form that is checked.
func (from *bundleRecord) read() (*record, error) {
	r := &record{
		kind: "dsse", body: base64.StdEncoding.EncodeToString(from.CanonicalizedBody), logID: hex.EncodeToString(from.LogID.KeyID),
		promise: from.InclusionPromise.SignedEntryTimestamp,
		proof:   &proof{checkpoint: from.InclusionProof.Checkpoint.Envelope},
	}
	for _, field := range []struct {
		to   *int64
		from json.Number
	}{
		{&r.logIndex, from.LogIndex},
		{&r.integratedTime, from.IntegratedTime},
		{&r.proof.index, from.InclusionProof.LogIndex},
	} {
		if field.from == "" {
			continue
		}
		var err error
		if *field.to, err = field.from.Int64(); err != nil {
			return nil, fmt.Errorf("its record of the log is not Rekor's: %w", err)
		}
	}
	if len(r.promise) == 0 {
		return nil, errors.New("its record of the log has no signed time, as those of version 2 of Rekor; sign with a log of version 1")
	}
	if r.proof.checkpoint == "" {
		return nil, errors.New("its record of the log has no proof of inclusion")
	}
	for _, hash := range from.InclusionProof.Hashes {
		if len(hash) != tlog.HashSize {
			return nil, fmt.Errorf("its proof of inclusion has a hash of %d bytes, want %d", len(hash), tlog.HashSize)
		}
		r.proof.path = append(r.proof.path, tlog.Hash(hash))
	}
	return r, nil
}

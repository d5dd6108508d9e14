package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Signature is one signature as a registry has it. Nothing of it is trusted before Check.
type Signature struct {
	// Place names it in messages.
	Place string `json:"place"`
	// Payload is cosign's claim, and Signature what signs it, in base64. Certificate, Chain and Rekor
	// are cosign's annotations of these meanings, "" for none.
	Payload     []byte `json:"payload,omitempty"`
	Signature   string `json:"signature,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Chain       string `json:"chain,omitempty"`
	Rekor       string `json:"rekor,omitempty"`
	// Bundle is a bundle of sigstore, which has all of these; the others are empty then.
	Bundle []byte `json:"bundle,omitempty"`
	// Simple is a message of GPG with a claim in it; the others are empty then.
	Simple []byte `json:"simple,omitempty"`
	// Fault says why it cannot be read, "" if it can.
	Fault string `json:"fault,omitempty"`
}

// Image is what is checked.
type Image struct {
	// Name is the reference by which the image is used, nil for an image without one.
	Name reference.Named
	// Digests are those of the manifest and of the indexes that lead to it: a signature of any of them
	// is one of the image.
	Digests []digest.Digest
	// Unnamed accepts signatures that name no repository, as those in bundles of cosign 3. Any image
	// that the key has ever signed, in whatever repository, passes then.
	Unnamed bool
}

// Check returns nil if the image meets all requirements. The error names the file, the scope and the
// type of the requirement, and why each signature was not accepted.
func (r Rules) Check(image Image, signatures []Signature) error {
	for i := range r.requirements {
		if err := r.requirements[i].meets(image, signatures); err != nil {
			return fmt.Errorf("%s, scope %s, %s: %w", r.File, r.Scope, r.requirements[i].kind, err)
		}
	}
	return nil
}

// Shown returns the signatures that show that the image meets the requirements: for each requirement that wants one, the
// first that it accepts. After a Check without an error, Check is content with them alone.
func (r Rules) Shown(image Image, signatures []Signature) []Signature {
	used := map[int]bool{}
	var shown []Signature
	for i := range r.requirements {
		one := &r.requirements[i]
		if one.kind != SigstoreSigned && one.kind != SignedBy {
			continue
		}
		trust, err := one.trust()
		if err != nil {
			continue
		}
		at := slices.IndexFunc(signatures, func(s Signature) bool { return trust.accepts(image, &s) == nil })
		if at >= 0 && !used[at] {
			used[at] = true
			shown = append(shown, signatures[at])
		}
	}
	return shown
}

// Equal reports whether two signatures are the same one, wherever they were found.
func (s *Signature) Equal(other *Signature) bool {
	return bytes.Equal(s.Payload, other.Payload) && s.Signature == other.Signature && s.Certificate == other.Certificate &&
		s.Chain == other.Chain && s.Rekor == other.Rekor && bytes.Equal(s.Bundle, other.Bundle) && bytes.Equal(s.Simple, other.Simple) && s.Fault == other.Fault
}

// meets returns nil if the image meets the requirement.
func (r *requirement) meets(image Image, signatures []Signature) error {
	switch r.kind {
	case Accept:
		return nil
	case Reject:
		return errRejected
	}
	trust, err := r.trust()
	if err != nil {
		return err
	}
	if len(signatures) == 0 {
		return errors.New("no signature was found")
	}
	var refused []string
	for i := range signatures {
		err := trust.accepts(image, &signatures[i])
		if err == nil {
			return nil
		}
		refused = append(refused, fmt.Sprintf("%s: %v", signatures[i].Place, err))
	}
	slices.Sort(refused)
	return fmt.Errorf("no signature is accepted (%s)", strings.Join(slices.Compact(refused), "; "))
}

// errRejected is why no image meets a requirement of type reject.
var errRejected = errors.New("images of this scope are rejected")

// trust is a requirement with its keys.
type trust struct {
	*requirement
	keys  []namedKey
	rekor []namedKey
	ca    *authority
	// ring is that of signedBy, which has none of the others.
	ring *ring
}

// trust reads the keys. They are read for each check, so that a changed file counts at once.
func (r *requirement) trust() (*trust, error) {
	t := &trust{requirement: r}
	var err error
	if r.kind == SignedBy {
		t.ring, err = r.keys.ring()
		return t, err
	}
	if t.keys, err = r.keys.keys(); err != nil {
		return nil, err
	}
	if t.rekor, err = r.rekor.keys(); err != nil {
		return nil, err
	}
	switch {
	case r.fulcio != nil:
		t.ca, err = r.fulcio.authority()
	case r.pki != nil:
		t.ca, err = r.pki.authority()
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// accepts returns nil if a signature is of the image, by a trusted key, and claims the right name.
func (t *trust) accepts(image Image, s *Signature) error {
	if s.Fault != "" {
		return errors.New(s.Fault)
	}
	switch {
	case t.ring != nil && s.Simple != nil:
		return t.acceptsSimple(image, s.Simple)
	case t.ring != nil || s.Simple != nil:
		return fmt.Errorf("it is not of the kind that %s wants", t.kind)
	case s.Bundle != nil:
		return t.acceptsBundle(image, s.Bundle)
	}
	signature, err := base64.StdEncoding.DecodeString(s.Signature)
	if err != nil || len(signature) == 0 {
		return errors.New("it has no signature in base64")
	}
	var certificate []byte
	if block, _ := pem.Decode([]byte(s.Certificate)); block != nil {
		certificate = block.Bytes
	}
	if err := t.verify(&signed{
		signature: signature, data: s.Payload, payload: s.Payload, certificate: certificate, chain: []byte(s.Chain),
		records: []readRecord{func() (*record, error) { return readAnnotation(s.Rekor) }},
	}); err != nil {
		return err
	}
	return t.acceptsClaim(image, s.Payload, "cosign container image signature", signPredicate)
}

// acceptsClaim returns nil if a claim, whose signature has been checked, has one of the types, and is of the image and of
// the right name.
func (t *trust) acceptsClaim(image Image, claim []byte, types ...string) error {
	name, dgst, err := readClaim(claim, types)
	if err != nil {
		return err
	}
	if !slices.Contains(image.Digests, dgst) {
		return fmt.Errorf("it is of %s, not of this image", dgst)
	}
	if why := t.identity.accepts(image.Name, name); why != "" {
		return errors.New(why)
	}
	return nil
}

// readClaim reads what a payload claims to sign. Its signature has been checked.
func readClaim(payload []byte, types []string) (name string, dgst digest.Digest, err error) {
	var claim struct {
		Critical struct {
			Type     string `json:"type"`
			Identity struct {
				Reference string `json:"docker-reference"`
			} `json:"identity"`
			Image struct {
				Digest digest.Digest `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &claim); err != nil {
		return "", "", fmt.Errorf("its payload is not a claim in JSON: %w", err)
	}
	if kind := claim.Critical.Type; !slices.Contains(types, kind) {
		return "", "", fmt.Errorf("its payload has the type %q, not that of an image's signature", kind)
	}
	return claim.Critical.Identity.Reference, claim.Critical.Image.Digest, nil
}

// sum is the hash that all signatures are of.
func sum(data []byte) []byte {
	hash := sha256.Sum256(data)
	return hash[:]
}

package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/ProtonMail/go-crypto/openpgp"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/berthrun/berth/internal/errs"
)

// simpleType is the type of the claim of a simple signature.
const simpleType = "atomic container signature"

const (
	// maxClaim bounds the claim of a simple signature, in bytes: it may be compressed.
	maxClaim = 1 << 20
	// maxMessage bounds the whole message, decompressed: its claim, its signatures, and packets that are skipped. Whoever
	// can write beside the registry chooses them, and no key has signed them.
	maxMessage = maxClaim + 64<<10
)

// ring is the keys of GPG that may have signed, and what to call each.
type ring struct {
	keys  openpgp.EntityList
	names []string
}

// ring reads keys of GPG, in their binary form or in ASCII armor.
func (s *source) ring() (*ring, error) {
	all, names, err := s.contents()
	if err != nil {
		return nil, err
	}
	r := &ring{}
	for i, data := range all {
		read := openpgp.ReadKeyRing
		if bytes.Contains(data, []byte("-----BEGIN PGP")) {
			read = openpgp.ReadArmoredKeyRing
		}
		keys, err := read(bytes.NewReader(data))
		if err == nil && len(keys) == 0 {
			err = errors.New("has no key")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s is not a keyring of GPG: %w: %w", s.field, names[i], err, errs.Invalid)
		}
		for _, key := range keys {
			r.names = append(r.names, fmt.Sprintf("%s (GPG %X)", names[i], key.PrimaryKey.Fingerprint))
		}
		r.keys = append(r.keys, keys...)
	}
	return r, nil
}

// acceptsSimple is accepts for a simple signature: a message that a key of GPG has signed, with the claim in it.
func (t *trust) acceptsSimple(image Image, message []byte) error {
	claim, err := t.ring.open(message)
	if err != nil {
		return err
	}
	return t.acceptsClaim(image, claim, simpleType)
}

// open returns what a trusted key has signed.
func (r *ring) open(message []byte) ([]byte, error) {
	message, err := decompress(message)
	if err != nil {
		return nil, err
	}
	none := int64(0) // a bound of each compressed packet, not of all together
	md, err := openpgp.ReadMessage(bytes.NewReader(message), r.keys, nil, &packet.Config{MaxDecompressedMessageSize: &none})
	switch {
	case errors.Is(err, pgperrors.ErrMessageTooLarge):
		return nil, errors.New("it has a compressed part within; a message of GPG is compressed as a whole, once")
	case err != nil:
		return nil, fmt.Errorf("it is not a message of GPG: %w", err)
	case md.IsEncrypted || md.IsSymmetricallyEncrypted || !md.IsSigned:
		return nil, errors.New("it is not a signed message of GPG")
	case md.SignedBy == nil:
		return nil, fmt.Errorf("it was made with the GPG key %X, which is not trusted", md.SignedByKeyId)
	}
	// The signature counts once all of the body is read.
	claim, err := io.ReadAll(io.LimitReader(md.UnverifiedBody, maxClaim+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is not a message of GPG: %w", err)
	case len(claim) > maxClaim:
		return nil, fmt.Errorf("its claim has more than %d bytes", maxClaim)
	case md.SignatureError != nil:
		return nil, fmt.Errorf("its signature by the GPG key %X does not count: %w", md.SignedByKeyId, md.SignatureError)
	case md.Signature == nil:
		return nil, errors.New("it is not a signed message of GPG")
	}
	return claim, nil
}

// decompress returns the packets of a message, which may all be in one compressed packet, as GPG writes them. A compressed
// packet may have others in it, each as many as it likes: those are not decompressed.
func decompress(message []byte) ([]byte, error) {
	if len(message) > maxMessage {
		return nil, fmt.Errorf("it has more than %d bytes", maxMessage)
	}
	first, err := packet.NewReader(bytes.NewReader(message)).Next()
	if err != nil {
		return nil, fmt.Errorf("it is not a message of GPG: %w", err)
	}
	compressed, ok := first.(*packet.Compressed)
	if !ok {
		return message, nil
	}
	data, err := io.ReadAll(io.LimitReader(compressed.Body, maxMessage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is not a message of GPG: %w", err)
	case len(data) > maxMessage:
		return nil, fmt.Errorf("it has more than %d bytes, decompressed", maxMessage)
	}
	return data, nil
}

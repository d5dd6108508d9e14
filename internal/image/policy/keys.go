package policy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/berthrun/berth/internal/errs"
)

// namedKey is a public key, and what to call it.
type namedKey struct {
	name string
	key  crypto.PublicKey
}

// minRSA is the shortest key of RSA that is used, in bits.
const minRSA = 2048

// keys reads public keys in PEM.
func (s *source) keys() ([]namedKey, error) {
	all, names, err := s.contents()
	if err != nil {
		return nil, err
	}
	var keys []namedKey
	for i, data := range all {
		key, err := parseKey(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w: %w", s.field, names[i], err, errs.Invalid)
		}
		keys = append(keys, namedKey{names[i], key})
	}
	return keys, nil
}

func parseKey(data []byte) (crypto.PublicKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("is not a public key in PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("is not a public key: %w", err)
	}
	return key, checkKey(key)
}

// checkKey refuses keys that verify does not use.
func checkKey(key crypto.PublicKey) error {
	switch key := key.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSA {
			return fmt.Errorf("is a key of RSA with %d bits, want at least %d", key.N.BitLen(), minRSA)
		}
		return nil
	}
	return fmt.Errorf("is a key of type %T; want ECDSA, RSA or Ed25519", key)
}

// verifyAny returns nil if one of the keys has made the signature of data.
func verifyAny(keys []namedKey, data, signature []byte) error {
	for _, k := range keys {
		if verify(k.key, data, signature) {
			return nil
		}
	}
	return errors.New("it was not made with a trusted key")
}

// verify checks a signature in the forms in which cosign makes them.
func verify(key crypto.PublicKey, data, signature []byte) bool {
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, sum(data), signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum(data), signature) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(key, data, signature)
	}
	return false
}

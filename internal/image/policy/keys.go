package policy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthrun/berth/internal/errs"
)

// namedKey is a public key, and what to call it.
type namedKey struct {
	name string
	key  crypto.PublicKey
}

// minRSA is the shortest key of RSA that is used, in bits.
const minRSA = 2048

// CheckKeys returns a fault for each requirement of images of registries whose keys or certificates cannot be used. Until they
// can, it refuses all images of its scope.
func (p *Policy) CheckKeys() []error {
	var faults []error
	check := func(field string, list []requirement) {
		for i := range list {
			if kind := list[i].kind; kind != SignedBy && kind != SigstoreSigned {
				continue
			}
			if _, err := list[i].trust(); err != nil {
				faults = append(faults, fmt.Errorf("image policy %s: %s[%d].%w", p.File, field, i, err))
			}
		}
	}
	check("default", p.fallback)
	for _, scope := range slices.Sorted(maps.Keys(p.docker)) {
		check("transports.docker."+scope, p.docker[scope])
	}
	return faults
}

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
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return errors.New("is a key of ECDSA with the curve P-224, want P-256, P-384 or P-521")
		}
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
		return ecdsa.VerifyASN1(key, sum(data), signature) || verifyOwnHash(key, data, signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum(data), signature) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(key, data, signature)
	}
	return false
}

// verifyOwnHash checks a signature with the hash that has the size of the key. cosign once used SHA-256 for all keys, and
// uses these hashes for larger keys now.
func verifyOwnHash(key *ecdsa.PublicKey, data, signature []byte) bool {
	switch key.Curve {
	case elliptic.P384():
		hash := sha512.Sum384(data)
		return ecdsa.VerifyASN1(key, hash[:], signature)
	case elliptic.P521():
		hash := sha512.Sum512(data)
		return ecdsa.VerifyASN1(key, hash[:], signature)
	}
	return false
}

// Package decryption opens the keys of encrypted layers with private keys of the node. It decrypts no layer: the secret of
// a layer that it returns is for the process that unpacks the layer (package unpack).
//
// The format is that of ocicrypt: the descriptor of a layer has, in its annotations, the layer's secret, encrypted for the
// owners of private keys.
package decryption

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// maxKeyFile is more than any private key has, in bytes.
	maxKeyFile = 64 << 10
	// maxKeys bounds the private keys that are tried for each layer.
	maxKeys = 100
)

// Keys are the private keys of a node.
type Keys struct {
	dir  string
	keys []crypto.PrivateKey
	// unused are the files that are not used as keys, with their paths and the reasons.
	unused []error
}

// Read reads the private keys of a directory: one for each file, in PEM, DER, or as JWK. It skips hidden files. It does not
// use a file that another user can read or write; see Unused. "" has no keys, and no error. The error is State for a
// directory that cannot be read, and Invalid for one with too many files.
func Read(dir string) (*Keys, error) {
	k := &Keys{dir: dir}
	if dir == "" {
		return k, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read image.decryption_keys_dir: %w: %w", err, errs.State)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue // such as ..data of a mounted Secret
		}
		if len(k.keys)+len(k.unused) == maxKeys {
			return nil, fmt.Errorf("image.decryption_keys_dir %s has more than %d files: %w", dir, maxKeys, errs.Invalid)
		}
		path := filepath.Join(dir, entry.Name())
		key, err := readKey(path)
		if err != nil {
			k.unused = append(k.unused, fmt.Errorf("%s: %w", path, err))
			continue
		}
		k.keys = append(k.keys, key)
	}
	return k, nil
}

// Unused returns why files of the directory are not used as keys; each error has the path.
func (k *Keys) Unused() []error { return k.unused }

// readKey reads one key. A link, as in a mounted Secret, is followed.
func readKey(path string) (crypto.PrivateKey, error) {
	// Opening a named pipe would wait.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		var fault *fs.PathError
		if errors.As(err, &fault) {
			err = fault.Err // the caller adds the path
		}
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("has mode %#o, so other users can use it; run chmod 0600", mode)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return nil, fmt.Errorf("belongs to user %d; run chown root", owner)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxKeyFile {
		return nil, fmt.Errorf("has more than %d bytes", maxKeyFile)
	}
	return parseKey(data)
}

// parseKey reads the first private key in PEM, or one in DER or as JWK.
func parseKey(data []byte) (crypto.PrivateKey, error) {
	if data := bytes.TrimSpace(data); bytes.HasPrefix(data, []byte("{")) {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(data); err != nil {
			return nil, errors.New("is not a JWK") // the cause may have a part of it
		}
		return usable(key.Key)
	}
	inPEM := false
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		inPEM = true
		switch {
		case block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "":
			return nil, errors.New("has a password; remove it (openssl pkey -in OLD -out NEW)")
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return parseDER(block.Bytes)
		}
	}
	if inPEM {
		return nil, errors.New("has no private key")
	}
	return parseDER(data)
}

func parseDER(der []byte) (crypto.PrivateKey, error) {
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		return usable(key)
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	return nil, errors.New("is not a private key in PEM, DER or JWK")
}

// usable returns the key if layers can be encrypted for it.
func usable(key any) (crypto.PrivateKey, error) {
	switch key.(type) {
	case *rsa.PrivateKey, *ecdsa.PrivateKey:
		return key, nil
	}
	return nil, fmt.Errorf("is a key of type %T; want a private key of RSA or ECDSA", key)
}

package provision

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Fingerprints create short hashes that distinguish contents. Their key is new in each run and is
// never written, so a short secret cannot be found by trying.
type Fingerprints struct{ key []byte }

// NewFingerprints draws the key of a run.
func NewFingerprints() *Fingerprints {
	key := make([]byte, sha256.Size)
	rand.Read(key) // never fails
	return &Fingerprints{key}
}

// Of is the fingerprint of a text: a content, or the digest that stands for it.
func (f *Fingerprints) Of(text string) string {
	mac := hmac.New(sha256.New, f.key)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}

// Sealed is how reports show a content that not everybody may read: by its size and its
// fingerprint. digest is the content's.
func Sealed(host Host, size int64, digest string) string {
	return fmt.Sprintf("%d bytes, %s", size, host.Fingerprint(digest))
}

// Readable reports whether a mode lets everybody read.
func Readable(mode fs.FileMode) bool { return mode.Perm()&0o004 != 0 }

// Hidden reports whether not everybody may read a file, which exists or whose directory exists: by
// its own mode, or by that of a directory above it.
func Hidden(files Files, name string) (bool, error) {
	info, err := files.Stat(name)
	if errs.IgnoreNotFound(err) != nil {
		return false, err
	}
	if err == nil && info.Type != fs.ModeSymlink && !Readable(info.Mode) {
		return true, nil
	}
	for dir := path.Dir(name); dir != "/" && dir != "."; dir = path.Dir(dir) {
		info, err := files.Stat(dir)
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return false, err
		}
		if info.Type.IsDir() && info.Mode.Perm()&0o001 == 0 {
			return true, nil
		}
	}
	return false, nil
}

// Conceal removes credentials from a text that is shown: the text between :// and @ in a URL, the
// values of keys named like a credential, and private keys.
func Conceal(host Host, text string) string {
	seal := func(value string) string { return "(" + Sealed(host, int64(len(value)), value) + ")" }
	url := regexp.MustCompile(`://[^/@\s"'<>]+@`)
	text = url.ReplaceAllStringFunc(text, func(found string) string { return "://" + seal(found[3:len(found)-1]) + "@" })
	key := regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*` + privateKey + `.*?-----END [A-Z0-9 ]*` + privateKey)
	text = key.ReplaceAllStringFunc(text, seal)
	named := regexp.MustCompile(`(?i)([\w.-]*(?:password|passwd|token|secret|auth|authorization|(?:api|access|private)[_-]?key|client-key-data)["']?[ \t]*[=:][ \t]*)` +
		`("[^"\n]+"|'[^'\n]+'|(?:basic|bearer)[ \t]+[^\s"',}]+|[^\s"'{\[(,][^\s,}]*)`)
	return named.ReplaceAllStringFunc(text, func(found string) string {
		parts := named.FindStringSubmatch(found)
		return parts[1] + seal(parts[2])
	})
}

// privateKey ends the first and the last line of a private key.
const privateKey = "PRIVATE KEY-----"

// HasPrivateKey reports whether there is a private key in a text. A difference may have lines of it
// without the first and the last one, by which Conceal finds it.
func HasPrivateKey(text string) bool { return strings.Contains(text, privateKey) }

// SealedValue is how reports show the JSON value of a key.
func SealedValue(host Host, key, value string, hidden bool) string {
	switch {
	case value == "":
		return ""
	case hidden:
		return Sealed(host, int64(len(value)), value)
	}
	name := strconv.Quote(key) + ": "
	return strings.TrimPrefix(Conceal(host, name+value), name)
}

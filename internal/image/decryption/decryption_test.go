package decryption

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-jose/go-jose/v4"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/encrypt"
)

// pair makes a key pair.
func pair(t testing.TB, kind func() (private, public []byte, err error)) (private, public []byte) {
	t.Helper()
	private, public, err := kind()
	if err != nil {
		t.Fatal(err)
	}
	return private, public
}

// sealed encrypts a layer.
func sealed(t testing.TB, content string, publicKeys ...[]byte) imagetest.Blob {
	t.Helper()
	blob, err := encrypt.Layer(imagetest.NewBlob(imagespec.MediaTypeImageLayer, []byte(content)), publicKeys...)
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

// keysIn reads a directory with files that only we can use.
func keysIn(t testing.TB, files map[string][]byte) *Keys {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// opened decrypts a layer in the way of the process that unpacks it.
func opened(t *testing.T, keys *Keys, layer imagetest.Blob) string {
	t.Helper()
	secret, err := keys.Unwrap(t.Context(), layer.Descriptor)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(secret.Key)
	if err != nil {
		t.Fatal(err)
	}
	plain := bytes.Clone(layer.Data)
	cipher.NewCTR(block, secret.Nonce).XORKeyStream(plain, plain)
	return string(plain)
}

// TestKeysInEveryForm: what ocicrypt encrypts for a public key is opened by the private key in each form.
func TestKeysInEveryForm(t *testing.T) {
	rsaKey, rsaPublic := pair(t, encrypt.RSA)
	ecKey, ecPublic := pair(t, encrypt.ECDSA)
	rsaDER, ecDER := der(t, rsaKey), der(t, ecKey)
	parsed := func(der []byte) any {
		key, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	sec1, err := x509.MarshalECPrivateKey(parsed(ecDER).(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	jwk, err := jose.JSONWebKey{Key: parsed(ecDER)}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	pkcs1 := x509.MarshalPKCS1PrivateKey(parsed(rsaDER).(*rsa.PrivateKey))
	for name, c := range map[string]struct{ private, public []byte }{
		"RSA, PKCS#8":         {rsaKey, rsaPublic},
		"RSA, PKCS#1":         {pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: pkcs1}), rsaPublic},
		"RSA, DER":            {rsaDER, rsaPublic},
		"ECDSA, PKCS#8":       {ecKey, ecPublic},
		"ECDSA, of ecparam":   {append(pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 0}}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1})...), ecPublic},
		"ECDSA, SEC 1 in DER": {sec1, ecPublic},
		"ECDSA, JWK":          {append([]byte("\n"), jwk...), ecPublic},
	} {
		keys := keysIn(t, map[string][]byte{"key": c.private, ".hidden": []byte("no key")})
		if len(keys.Unused()) > 0 {
			t.Errorf("%s: %v", name, keys.Unused())
			continue
		}
		if got := opened(t, keys, sealed(t, "a layer", c.public)); got != "a layer" {
			t.Errorf("%s: decrypted to %q", name, got)
		}
	}
}

func der(t *testing.T, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM")
	}
	return block.Bytes
}

// TestOneOfSeveralKeys: an image for several owners is opened by each, and the node may have other keys, too.
func TestOneOfSeveralKeys(t *testing.T) {
	first, firstPublic := pair(t, encrypt.RSA)
	second, secondPublic := pair(t, encrypt.ECDSA)
	other, _ := pair(t, encrypt.RSA)
	layer := sealed(t, "for both", firstPublic, secondPublic)
	for _, key := range [][]byte{first, second} {
		if got := opened(t, keysIn(t, map[string][]byte{"a": other, "b": key}), layer); got != "for both" {
			t.Errorf("decrypted to %q", got)
		}
	}
	// An owner that was added later has an annotation part of its own. One that we cannot read does not matter.
	layer.Annotations = maps.Clone(layer.Annotations)
	layer.Annotations[jweKeys] = base64.StdEncoding.EncodeToString([]byte("{}")) + "," + layer.Annotations[jweKeys]
	if got := opened(t, keysIn(t, map[string][]byte{"a": second}), layer); got != "for both" {
		t.Errorf("decrypted to %q", got)
	}
}

// TestManyKeys: an image for many owners is opened by the last of them, too. Owners without end are refused.
func TestManyKeys(t *testing.T) {
	var last []byte
	var publics [][]byte
	for range 2*jose.MaxRecipients + 3 {
		private, public := pair(t, encrypt.ECDSA)
		last, publics = private, append(publics, public)
	}
	layer := sealed(t, "for all", publics...)
	if got := opened(t, keysIn(t, map[string][]byte{"key": last}), layer); got != "for all" {
		t.Errorf("decrypted to %q", got)
	}
	other, _ := pair(t, encrypt.ECDSA)
	keys := keysIn(t, map[string][]byte{"key": other})
	var locked *LockedError
	if _, err := keys.Unwrap(t.Context(), layer.Descriptor); !errors.As(err, &locked) {
		t.Errorf("with another key: %v", err)
	}
	many := base64.StdEncoding.EncodeToString([]byte(`{"recipients":[` + strings.Repeat("{},", maxRecipients/2) + `{}]}`))
	layer.Annotations = maps.Clone(layer.Annotations)
	layer.Annotations[jweKeys] = many + "," + many
	if _, err := keys.Unwrap(t.Context(), layer.Descriptor); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "for more than 1000 keys") {
		t.Errorf("for too many keys: %v", err)
	}
}

// TestLockedLayers: the error says what is missing, and which files are no keys.
func TestLockedLayers(t *testing.T) {
	key, public := pair(t, encrypt.ECDSA)
	other, _ := pair(t, encrypt.ECDSA)
	layer := sealed(t, "x", public)
	none, err := Read("")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		keys *Keys
		want string
	}{
		"no directory": {none, "has no private keys"},
		"no key":       {keysIn(t, nil), "none of the 0 private keys"},
		"another key":  {keysIn(t, map[string][]byte{"k": other}), "none of the 1 private keys"},
	} {
		_, err := c.keys.Unwrap(t.Context(), layer.Descriptor)
		var locked *LockedError
		if !errors.As(err, &locked) || !errors.Is(err, errs.State) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "image.decryption_keys_dir") {
			t.Errorf("%s: %v", name, err)
		}
	}
	canceled, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("given up")
	cancel(reason)
	if _, err := keysIn(t, map[string][]byte{"k": key}).Unwrap(canceled, layer.Descriptor); !errors.Is(err, reason) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := Read(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "image.decryption_keys_dir") {
		t.Errorf("absent: %v", err)
	}
}

// TestFilesThatAreNoKeys: no such file is used, and none of them hides a good key.
func TestFilesThatAreNoKeys(t *testing.T) {
	key, public := pair(t, encrypt.ECDSA)
	layer := sealed(t, "x", public)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edDER, err := x509.MarshalPKCS8PrivateKey(edwards)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"public":   {public, "has no private key"},
		"garbage":  {[]byte("no key at all"), "is not a private key"},
		"empty":    {nil, "is not a private key"},
		"jwk":      {[]byte(`{"kty":"EC"}`), "is not a JWK"},
		"edwards":  {edDER, "ed25519.PrivateKey"},
		"password": {pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte{1}}), "has a password"},
		"old":      {[]byte("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"), "has a password"},
		"large":    {make([]byte, maxKeyFile+1), "more than"},
	} {
		keys := keysIn(t, map[string][]byte{name: c.data, "good": key})
		if unused := keys.Unused(); len(unused) != 1 || !strings.Contains(unused[0].Error(), name+": "+c.want) && !strings.Contains(unused[0].Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, unused, c.want)
		}
		if got := opened(t, keys, layer); got != "x" {
			t.Errorf("%s: decrypted to %q", name, got)
		}
	}
}

// TestKeysOfOthers: a key that another user can use is not used, wherever a link leads.
func TestKeysOfOthers(t *testing.T) {
	key, public := pair(t, encrypt.ECDSA)
	layer := sealed(t, "x", public)
	dir := t.TempDir()
	path, outside := filepath.Join(dir, "key"), filepath.Join(t.TempDir(), "key")
	for _, file := range []string{path, outside} {
		if err := os.WriteFile(file, key, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, want string) {
		t.Helper()
		keys, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = keys.Unwrap(t.Context(), layer.Descriptor)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	check("mode 0600", "")
	for mode, want := range map[os.FileMode]string{0o640: "mode 0640", 0o604: "mode 0604", 0o620: "mode 0620"} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		check(mode.String(), want)
	}
	if err := errors.Join(os.Remove(path), os.Symlink(outside, path)); err != nil {
		t.Fatal(err)
	}
	check("a link", "")
	if err := os.Chmod(outside, 0o644); err != nil {
		t.Fatal(err)
	}
	check("a link to a file that others can read", "mode 0644")
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(outside, 0o600), os.Chown(outside, 1234, 0)); err != nil {
			t.Fatal(err)
		}
		check("another owner", "belongs to user 1234")
	}
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	check("a named pipe", "is not a regular file")
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	check("a directory", "is not a regular file")
}

func TestDescriptionsThatAreWrong(t *testing.T) {
	key, public := pair(t, encrypt.ECDSA)
	keys := keysIn(t, map[string][]byte{"k": key})
	base64Of := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for name, c := range map[string]struct {
		change map[string]string
		kind   error
		want   string
	}{
		"no key":         {map[string]string{jweKeys: ""}, errs.Invalid, "does not have its key"},
		"another scheme": {map[string]string{jweKeys: "", keysPrefix + "pkcs7": "x", keysPrefix + "pgp": "y"}, errs.Unsupported, `"pgp", "pkcs7"`},
		"not base64":     {map[string]string{jweKeys: "!"}, errs.Invalid, "is not base64"},
		"not JWE":        {map[string]string{jweKeys: base64Of("{}")}, errs.Invalid, "is not JWE"},
		"too large":      {map[string]string{jweKeys: strings.Repeat("A", maxWrapped+1)}, errs.Invalid, "at most"},
		"options":        {map[string]string{publicOptions: "!"}, errs.Invalid, "pubopts"},
		"not JSON":       {map[string]string{publicOptions: base64Of("x")}, errs.Invalid, "pubopts"},
		"another cipher": {map[string]string{publicOptions: base64Of(`{"cipher":"ROT13"}`)}, errs.Unsupported, "ROT13"},
		"no options":     {map[string]string{publicOptions: base64Of(`{}`)}, errs.Unsupported, "cipher"},
		"a short HMAC":   {map[string]string{publicOptions: base64Of(`{"cipher":"` + aesCTR + `","hmac":"AAAA"}`)}, errs.Invalid, "HMAC has 3 bytes"},
		"an empty nonce": {map[string]string{publicOptions: base64Of(`{"cipher":"` + aesCTR + `","cipheroptions":{"nonce":""}}`)}, errs.Invalid, "nonce has 0 bytes"},
	} {
		layer := sealed(t, "x", public)
		layer.Annotations = maps.Clone(layer.Annotations)
		for name, text := range c.change {
			if layer.Annotations[name] = text; text == "" {
				delete(layer.Annotations, name)
			}
		}
		_, err := keys.Unwrap(t.Context(), layer.Descriptor)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %v and %q", name, err, c.kind, c.want)
		}
	}
}

// FuzzUnwrap: a secret is complete, and each refusal blames the layer or the keys.
func FuzzUnwrap(f *testing.F) {
	key, public := pair(f, encrypt.ECDSA)
	keys := keysIn(f, map[string][]byte{"k": key})
	layer := sealed(f, "x", public)
	f.Add(layer.Annotations[jweKeys], layer.Annotations[publicOptions])
	f.Add(layer.Annotations[jweKeys]+","+layer.Annotations[jweKeys], "e30=")
	f.Add("e30=", layer.Annotations[publicOptions])
	f.Fuzz(func(t *testing.T, wrapped, options string) {
		secret, err := keys.Unwrap(t.Context(), imagespec.Descriptor{Annotations: map[string]string{jweKeys: wrapped, publicOptions: options}})
		switch {
		case err == nil && secret.Check() != nil:
			t.Errorf("the secret is not complete: %v", secret.Check())
		case err != nil && !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Unsupported) && !errors.Is(err, errs.State):
			t.Errorf("kind of %v", err)
		}
	})
}

// FuzzKey: what is accepted is a private key.
func FuzzKey(f *testing.F) {
	key, public := pair(f, encrypt.ECDSA)
	f.Add(key)
	f.Add(public)
	f.Add([]byte(`{"kty":"EC","crv":"P-256"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := parseKey(data)
		if err != nil {
			return
		}
		if _, err := usable(key); err != nil {
			t.Error(err)
		}
	})
}

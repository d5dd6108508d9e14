package decryption

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/unpack"
)

const (
	// keysPrefix is that of the annotations with the secret of a layer: one annotation for each scheme of encryption.
	keysPrefix = "org.opencontainers.image.enc.keys."
	jweKeys    = keysPrefix + "jwe"
	// publicOptions is the annotation with what needs no key.
	publicOptions = "org.opencontainers.image.enc.pubopts"

	// aesCTR is the one cipher of layers.
	aesCTR = "AES_256_CTR_HMAC_SHA256"

	// maxWrapped bounds the annotation with a layer's secret, and maxRecipients the keys for which the secret is encrypted:
	// each of our keys is tried with each. The annotation has room for fewer keys in the forms that ocicrypt writes.
	maxWrapped    = 256 << 10
	maxRecipients = 1000
)

// LockedError is the error of a layer that no private key of the node opens. Its text and its kind, State, are Err's.
type LockedError struct{ Err error }

func (e *LockedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *LockedError) Unwrap() error { return e.Err }

// options are the parts of a layer's description: the public ones, and those that are encrypted.
type options struct {
	Cipher        string            `json:"cipher"`
	MAC           []byte            `json:"hmac"`
	Key           []byte            `json:"symkey"`
	CipherOptions map[string][]byte `json:"cipheroptions"`
}

// Unwrap returns the secret of an encrypted layer. The errors are about "it", the layer: LockedError if no key opens it,
// Unsupported for another scheme or cipher, Invalid if the annotations are wrong.
func (k *Keys) Unwrap(ctx context.Context, layer imagespec.Descriptor) (*unpack.Secret, error) {
	wrapped, err := wrappedKeys(layer.Annotations)
	if err != nil {
		return nil, err
	}
	var public options
	if err := decode(layer.Annotations[publicOptions], &public); err != nil {
		return nil, fmt.Errorf("it is encrypted, and its annotation %s is wrong: %w", publicOptions, err)
	}
	if public.Cipher != aesCTR {
		return nil, fmt.Errorf("it is encrypted with the cipher %.100q; berth decrypts %s: %w", public.Cipher, aesCTR, errs.Unsupported)
	}
	for _, jwe := range wrapped {
		for _, key := range k.keys {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if _, _, plain, err := jwe.DecryptMulti(key); err == nil {
				return secretOf(plain, public)
			}
		}
	}
	return nil, k.locked()
}

// wrappedKeys returns the encrypted forms of a layer's secret.
func wrappedKeys(annotations map[string]string) ([]*jose.JSONWebEncryption, error) {
	text := annotations[jweKeys]
	if text == "" {
		return nil, otherScheme(annotations)
	}
	if len(text) > maxWrapped {
		return nil, fmt.Errorf("it is encrypted, and its annotation %s has %d bytes, at most %d are read: %w", jweKeys, len(text), maxWrapped, errs.Invalid)
	}
	var all []*jose.JSONWebEncryption
	var unread error
	recipients := 0
	for part := range strings.SplitSeq(text, ",") {
		data, err := base64.StdEncoding.DecodeString(part)
		if err != nil {
			return nil, fmt.Errorf("it is encrypted, and its annotation %s is not base64: %w", jweKeys, errs.Invalid)
		}
		split, n := pieces(data)
		if recipients += n; recipients > maxRecipients {
			return nil, fmt.Errorf("it is encrypted, and its annotation %s is for more than %d keys, which is the limit: %w", jweKeys, maxRecipients, errs.Invalid)
		}
		for _, piece := range split {
			jwe, err := jose.ParseEncryptedJSON(piece,
				[]jose.KeyAlgorithm{jose.RSA_OAEP, jose.RSA_OAEP_256, jose.ECDH_ES_A128KW, jose.ECDH_ES_A192KW, jose.ECDH_ES_A256KW},
				[]jose.ContentEncryption{jose.A128GCM, jose.A192GCM, jose.A256GCM, jose.A128CBC_HS256, jose.A192CBC_HS384, jose.A256CBC_HS512})
			if err != nil { // another part may be for us
				unread = fmt.Errorf("it is encrypted, and its annotation %s is not JWE that berth reads: %.200s: %w", jweKeys, err.Error(), errs.Invalid)
				continue
			}
			all = append(all, jwe)
		}
	}
	if len(all) == 0 {
		return nil, unread
	}
	return all, nil
}

// pieces splits a JWE for many keys: go-jose reads at most jose.MaxRecipients at a time. Each piece has the same content,
// encrypted for some of the keys. recipients is how many keys there are. What is no JWE for many is one piece.
func pieces(data []byte) (pieces []string, recipients int) {
	whole := map[string]json.RawMessage{}
	var keys []json.RawMessage
	if json.Unmarshal(data, &whole) != nil || json.Unmarshal(whole["recipients"], &keys) != nil || len(keys) <= jose.MaxRecipients {
		return []string{string(data)}, max(len(keys), 1)
	}
	for some := range slices.Chunk(keys, jose.MaxRecipients) {
		list, err := json.Marshal(some)
		whole["recipients"] = list
		piece, wholeErr := json.Marshal(whole)
		if err != nil || wholeErr != nil { // not possible: all of it has just been read
			return []string{string(data)}, len(keys)
		}
		pieces = append(pieces, string(piece))
	}
	return pieces, len(keys)
}

// otherScheme is the error of a layer whose secret is not there as JWE.
func otherScheme(annotations map[string]string) error {
	var schemes []string
	for name := range annotations {
		if scheme, ok := strings.CutPrefix(name, keysPrefix); ok {
			schemes = append(schemes, fmt.Sprintf("%.50q", scheme))
		}
	}
	if len(schemes) == 0 {
		return fmt.Errorf("it is encrypted, and the manifest does not have its key (annotation %s): %w", jweKeys, errs.Invalid)
	}
	slices.Sort(schemes)
	return fmt.Errorf("it is encrypted by the scheme %s; berth decrypts jwe: encrypt the image for a public key, too (skopeo copy --encryption-key jwe:PUBLIC.pem): %w",
		strings.Join(schemes[:min(len(schemes), 5)], ", "), errs.Unsupported)
}

// decode reads JSON in base64. The errors have no part of it.
func decode(text string, to *options) error {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return fmt.Errorf("not base64: %w", errs.Invalid)
	}
	if json.Unmarshal(data, to) != nil {
		return fmt.Errorf("not the JSON of ocicrypt: %w", errs.Invalid)
	}
	return nil
}

// secretOf joins both parts of a layer's description. ocicrypt lets the public nonce count before the encrypted one.
func secretOf(plain []byte, public options) (*unpack.Secret, error) {
	var private options
	if json.Unmarshal(plain, &private) != nil {
		return nil, fmt.Errorf("it is encrypted, and its key is not the JSON of ocicrypt: %w", errs.Invalid)
	}
	nonce, ok := public.CipherOptions["nonce"]
	if !ok {
		nonce = private.CipherOptions["nonce"]
	}
	secret := &unpack.Secret{Key: private.Key, Nonce: nonce, MAC: public.MAC}
	if err := secret.Check(); err != nil {
		return nil, fmt.Errorf("it is encrypted, and %w", err)
	}
	return secret, nil
}

// locked is the error of a layer that no key opens.
func (k *Keys) locked() error {
	if k.dir == "" {
		return &LockedError{fmt.Errorf("it is encrypted, and the node has no private keys: name a directory with one for which the image was encrypted in image.decryption_keys_dir: %w", errs.State)}
	}
	text := fmt.Sprintf("it is encrypted, and none of the %d private keys of image.decryption_keys_dir opens it: add one to %s for which the image was encrypted", len(k.keys), k.dir)
	for i, err := range k.unused {
		if i == 3 {
			text += fmt.Sprintf("; %d more files are not used", len(k.unused)-i)
			break
		}
		text += fmt.Sprintf("; %v", err)
	}
	return &LockedError{fmt.Errorf("%s: %w", text, errs.State)}
}

package layers

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/berthrun/berth/internal/image/decryption"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/image/unpack"
)

// SetDecryptionKeys names the directory of the private keys that decrypt layers from now on, "" for none. It is read for
// each image, so keys can be exchanged.
func (u *Unpacker) SetDecryptionKeys(dir string) { u.decryptionKeys.Store(&dir) }

// MayDecrypt returns nil if the node's private keys open all layers of an image that are encrypted. Unpack returns the same
// error: a pull asks before it downloads.
func (u *Unpacker) MayDecrypt(ctx context.Context, t *tree.Tree) error {
	_, err := u.secretsOf(ctx, t)
	return err
}

// secretsOf returns the secrets of an image's layers, nil for those that are not encrypted.
func (u *Unpacker) secretsOf(ctx context.Context, t *tree.Tree) ([]*unpack.Secret, error) {
	all := make([]int, len(t.Layers))
	for i := range all {
		all[i] = i
	}
	return u.secretsOfLayers(ctx, t, all)
}

// secretsOfLayers is secretsOf for some layers. The others have nil.
func (u *Unpacker) secretsOfLayers(ctx context.Context, t *tree.Tree, which []int) ([]*unpack.Secret, error) {
	secrets := make([]*unpack.Secret, len(t.Layers))
	if !slices.ContainsFunc(which, t.IsEncrypted) {
		return secrets, nil
	}
	keys, err := decryption.Read(*u.decryptionKeys.Load())
	if err != nil {
		return nil, err
	}
	for _, i := range which {
		if !t.IsEncrypted(i) {
			continue
		}
		if secrets[i], err = keys.Unwrap(ctx, t.Layers[i]); err != nil {
			return nil, fmt.Errorf("cannot decrypt %s: %w", t.SourceOf(i), err)
		}
	}
	return secrets, nil
}

// source is what layer i is unpacked from: its blob, and the secret that decrypts it. Who knows both has the content. A
// hash of the secret, which is random, does not disclose it.
func (u *unpacking) source(i int) string {
	if u.t.Artifact != nil {
		return u.names[i] // which is a digest of its files
	}
	blob := u.t.Layers[i].Digest.String()
	if secret := u.secrets[i]; secret != nil {
		return fmt.Sprintf("%s %x", blob, sha256.Sum256(slices.Concat(secret.Key, secret.Nonce)))
	}
	return blob
}

// sources are those with which a new layer i is labelled.
func (u *unpacking) sources(i int) []string {
	if !u.t.IsEncrypted(i) {
		return nil
	}
	return []string{u.source(i)}
}

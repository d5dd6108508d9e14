package imagetest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
)

// Encrypt encrypts a layer with a new key.
func Encrypt(plain []byte) (data, key, nonce, mac []byte, err error) {
	key, nonce = make([]byte, 32), make([]byte, aes.BlockSize)
	rand.Read(key)
	rand.Read(nonce)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, nil, nil, nil, fmt.Errorf("cannot encrypt a layer: %w", err)
	}
	data = make([]byte, len(plain))
	cipher.NewCTR(block, nonce).XORKeyStream(data, plain)
	hash := hmac.New(sha256.New, key)
	hash.Write(data)
	return data, key, nonce, hash.Sum(nil), nil
}

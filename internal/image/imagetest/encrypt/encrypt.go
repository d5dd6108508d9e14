// Package encrypt encrypts images for tests with ocicrypt, as skopeo and buildah do. It is not in package imagetest: no
// program of berth has ocicrypt.
package encrypt

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// Image encrypts all layers of an image for the owners of public keys in PEM. Each call takes other random keys.
func Image(img *imagetest.Image, publicKeys ...[]byte) (*imagetest.Image, error) {
	layers := make([]imagetest.Blob, len(img.Layers))
	for i, layer := range img.Layers {
		var err error
		if layers[i], err = Layer(layer, publicKeys...); err != nil {
			return nil, err
		}
	}
	return img.WithLayers(layers...)
}

// Layer encrypts one layer.
func Layer(layer imagetest.Blob, publicKeys ...[]byte) (imagetest.Blob, error) {
	how, err := config.EncryptWithJwe(publicKeys)
	if err != nil {
		return imagetest.Blob{}, err
	}
	encrypted, finish, err := ocicrypt.EncryptLayer(how.EncryptConfig, bytes.NewReader(layer.Data), layer.Descriptor)
	if err != nil {
		return imagetest.Blob{}, fmt.Errorf("cannot encrypt a layer: %w", err)
	}
	data, err := io.ReadAll(encrypted)
	if err != nil {
		return imagetest.Blob{}, fmt.Errorf("cannot encrypt a layer: %w", err)
	}
	blob := imagetest.NewBlob(layer.MediaType+"+encrypted", data)
	if blob.Annotations, err = finish(); err != nil {
		return imagetest.Blob{}, fmt.Errorf("cannot encrypt the key of a layer: %w", err)
	}
	return blob, nil
}

// RSA makes a key pair in PEM.
func RSA() (private, public []byte, err error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	return inPEM(key)
}

// ECDSA makes a key pair of P-256 in PEM.
func ECDSA() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	return inPEM(key)
}

func inPEM(key crypto.Signer) (private, public []byte, err error) {
	private, err = x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	if public, err = x509.MarshalPKIXPublicKey(key.Public()); err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), nil
}

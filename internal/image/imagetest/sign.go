package imagetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Signer makes signatures in the formats of cosign.
type Signer struct{ key *ecdsa.PrivateKey }

// NewSigner makes a signer with a new key.
func NewSigner() *Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return &Signer{key}
}

// PublicKey returns the public key in PEM.
func (s *Signer) PublicKey() []byte {
	der, err := x509.MarshalPKIXPublicKey(&s.key.PublicKey)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// Key is the private key.
func (s *Signer) Key() *ecdsa.PrivateKey { return s.key }

// Sign signs data.
func (s *Signer) Sign(data []byte) []byte {
	hash := sha256.Sum256(data)
	signature, err := s.key.Sign(rand.Reader, hash[:], crypto.SHA256)
	if err != nil {
		panic(err)
	}
	return signature
}

// Claim is the payload with which cosign signs an image of the name.
func Claim(name string, dgst digest.Digest) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, name, dgst)
}

// Bundle is a bundle of sigstore as cosign 3 makes it: a statement that signs the digest. name is ""
// in those of cosign.
func (s *Signer) Bundle(name string, dgst digest.Digest, predicate string) []byte {
	subject := map[string]any{"digest": map[string]string{"sha256": dgst.Encoded()}}
	if name != "" {
		subject["name"] = name
	}
	statement := mustJSON(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": []any{subject}, "predicateType": predicate, "predicate": map[string]any{},
	})
	const kind = "application/vnd.in-toto+json"
	signed := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(statement), statement)
	return mustJSON(map[string]any{
		"mediaType": BundleType, "verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": ""}},
		"dsseEnvelope": map[string]any{
			"payload": statement, "payloadType": kind, "signatures": []any{map[string]any{"sig": s.Sign(signed)}},
		},
	})
}

// The media types of cosign's payload, and of a bundle.
const (
	ClaimType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// PushClaim makes a signature available where cosign looks for it: the tag sha256-DIGEST.sig. More
// annotations are those of keyless signatures.
func (r *Registry) PushClaim(repository string, dgst digest.Digest, payload Blob, signature []byte, annotations map[string]string) {
	payload.Annotations = map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)}
	for key, value := range annotations {
		payload.Annotations[key] = value
	}
	config := NewBlob(imagespec.MediaTypeImageConfig, []byte(`{}`))
	r.PushBlob(config)
	r.PushBlob(payload)
	r.PushManifest(repository, strings.Replace(dgst.String(), ":", "-", 1)+".sig", NewBlob(imagespec.MediaTypeImageManifest, mustJSON(imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest,
		Config: config.Descriptor, Layers: []imagespec.Descriptor{payload.Descriptor},
	})))
}

// PushBundle makes a bundle available as a referrer, by the tag for registries without the API.
func (r *Registry) PushBundle(repository string, dgst digest.Digest, bundle []byte) {
	layer, config := NewBlob(BundleType, bundle), NewBlob(imagespec.MediaTypeEmptyJSON, []byte(`{}`))
	r.PushBlob(layer)
	r.PushBlob(config)
	manifest := NewBlob(imagespec.MediaTypeImageManifest, mustJSON(imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest, ArtifactType: BundleType,
		Config: config.Descriptor, Layers: []imagespec.Descriptor{layer.Descriptor},
		Subject: &imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: dgst, Size: 1},
	}))
	r.PushManifest(repository, "", manifest)
	listed := manifest.Descriptor
	listed.ArtifactType = BundleType
	r.PushManifest(repository, strings.Replace(dgst.String(), ":", "-", 1), NewBlob(imagespec.MediaTypeImageIndex, mustJSON(imagespec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{listed},
	})))
}

func mustJSON(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return data
}

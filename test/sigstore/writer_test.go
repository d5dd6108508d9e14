package sigstore

import (
	"context"
	"crypto"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"
	"github.com/go-openapi/swag/conv"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/rekor/pkg/generated/client/entries"
	"github.com/sigstore/rekor/pkg/generated/models"
	"github.com/sigstore/rekor/pkg/types"
	"github.com/sigstore/rekor/pkg/util"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/transparency-dev/merkle/rfc6962"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// logClient is a Rekor in the reference's own code: its bodies, its promises and its checkpoints, with the key of a log.
type logClient struct {
	sign.RekorClient
	log *keyless.Keyless
	at  time.Time
}

// CreateLogEntry records an entry as the second of two.
func (c *logClient) CreateLogEntry(params *entries.CreateLogEntryParams, _ ...entries.ClientOption) (*entries.CreateLogEntryCreated, error) {
	ctx := context.Background()
	entry, err := types.CreateVersionedEntry(params.ProposedEntry)
	if err != nil {
		return nil, err
	}
	body, err := types.CanonicalizeEntry(ctx, entry)
	if err != nil {
		return nil, err
	}
	signer, err := signature.LoadECDSASignerVerifier(c.log.Rekor.Key(), crypto.SHA256)
	if err != nil {
		return nil, err
	}
	const index = 4711
	payload, err := json.Marshal(tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(body), IntegratedTime: c.at.Unix(), LogIndex: index, LogID: hex.EncodeToString(c.log.LogID()),
	})
	if err != nil {
		return nil, err
	}
	if payload, err = jsoncanonicalizer.Transform(payload); err != nil {
		return nil, err
	}
	tree := rfc6962.DefaultHasher
	first := tree.HashLeaf([]byte("first"))
	top := tree.HashChildren(first, tree.HashLeaf(body))
	checkpoint, err := util.CreateAndSignCheckpoint(ctx, "log.test", 42, 2, top, signer)
	if err != nil {
		return nil, err
	}
	return &entries.CreateLogEntryCreated{ETag: "one", Payload: models.LogEntry{"one": models.LogEntryAnon{
		Body: base64.StdEncoding.EncodeToString(body), IntegratedTime: conv.Pointer(c.at.Unix()), LogIndex: conv.Pointer(int64(index)),
		LogID: conv.Pointer(hex.EncodeToString(c.log.LogID())),
		Verification: &models.LogEntryAnonVerification{
			SignedEntryTimestamp: c.log.Rekor.Sign(payload),
			InclusionProof: &models.InclusionProof{
				Checkpoint: conv.Pointer(string(checkpoint)), Hashes: []string{hex.EncodeToString(first)}, LogIndex: conv.Pointer(int64(1)),
				RootHash: conv.Pointer(hex.EncodeToString(top)), TreeSize: conv.Pointer(int64(2)),
			},
		},
	}}}, nil
}

// fulcioClient is a Fulcio that issues certificates for the identity.
type fulcioClient struct{ *keyless.Keyless }

// GetCertificate implements sign.CertificateProvider.
func (c fulcioClient) GetCertificate(_ context.Context, key sign.Keypair, _ *sign.CertificateProviderOptions) ([]byte, error) {
	return c.CertifyKey(c.Leaf(email, issuer), key.GetPublicKey()), nil
}

// keypair makes a key with which the reference signs.
func keypair(t *testing.T, algorithm protocommon.PublicKeyDetails) *sign.EphemeralKeypair {
	t.Helper()
	pair, err := sign.NewEphemeralKeypair(&sign.EphemeralKeypairOptions{Algorithm: algorithm})
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// written is a bundle that the reference signs and writes. authority is nil for a bundle of the key.
func written(t *testing.T, pair sign.Keypair, content sign.Content, authority *keyless.Keyless, logs ...*keyless.Keyless) []byte {
	t.Helper()
	var options sign.BundleOptions
	if authority != nil {
		options.CertificateProvider = fulcioClient{authority}
	}
	for _, log := range logs {
		client := &logClient{log: log, at: log.Now.Add(time.Minute)}
		options.TransparencyLogs = append(options.TransparencyLogs, sign.NewRekor(&sign.RekorOptions{Client: client, Version: 1}))
	}
	made, err := sign.Bundle(content, pair, options)
	if err != nil {
		t.Fatal(err)
	}
	data, err := protojson.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// statement is what signs the image in a bundle of the reference.
func statement() *sign.DSSEData {
	return &sign.DSSEData{Data: keyless.Statement(image, imageDigest()), PayloadType: keyless.StatementType}
}

// TestWrittenBundles: berth accepts what the reference writes, for the algorithms that cosign offers.
func TestWrittenBundles(t *testing.T) {
	k, second := keyless.New(), keyless.New()
	tr := trusting(k)
	var rows []judged
	for name, algorithm := range map[string]protocommon.PublicKeyDetails{
		"ECDSA P-256": protocommon.PublicKeyDetails_PKIX_ECDSA_P256_SHA_256,
		"ECDSA P-384": protocommon.PublicKeyDetails_PKIX_ECDSA_P384_SHA_384,
		"ECDSA P-521": protocommon.PublicKeyDetails_PKIX_ECDSA_P521_SHA_512,
		"RSA 2048":    protocommon.PublicKeyDetails_PKIX_RSA_PKCS1V15_2048_SHA256,
		"RSA 3072":    protocommon.PublicKeyDetails_PKIX_RSA_PKCS1V15_3072_SHA256,
		"Ed25519":     protocommon.PublicKeyDetails_PKIX_ED25519,
	} {
		pair := keypair(t, algorithm)
		text, err := pair.GetPublicKeyPem()
		if err != nil {
			t.Fatal(err)
		}
		key := &trust{key: []byte(text)}
		logged := &trust{key: []byte(text), logs: tr.logs, from: tr.from}
		rows = append(rows,
			judged{name: name + ", a key", bundle: written(t, pair, statement(), nil), trust: key},
			judged{name: name + ", a key that is not in the log", bundle: written(t, pair, statement(), nil), trust: logged, berth: "0 records", reference: "not enough verified log entries"},
		)
		if hash := pair.GetHashAlgorithm(); hash == protocommon.HashAlgorithm_SHA2_384 || hash == protocommon.HashAlgorithm_SHA2_512 && name != "Ed25519" {
			continue // version 1 of Rekor records envelopes with SHA-256 alone
		}
		rows = append(rows,
			judged{name: name + ", a certificate", bundle: written(t, pair, statement(), k, k)},
			judged{name: name + ", a key in the log", bundle: written(t, pair, statement(), nil, k), trust: logged},
		)
	}
	pair := keypair(t, protocommon.PublicKeyDetails_PKIX_ECDSA_P256_SHA_256)
	both := trusting(k)
	both.logs = append(both.logs, second)
	rows = append(rows,
		judged{name: "two logs, the first is trusted", bundle: written(t, pair, statement(), k, k, second)},
		judged{name: "two logs, the second is trusted", bundle: written(t, pair, statement(), k, second, k)},
		judged{name: "two logs, both are trusted", bundle: written(t, pair, statement(), k, k, second), trust: both},
		judged{name: "one of two trusted logs", bundle: written(t, pair, statement(), k, second), trust: both},
		judged{name: "two logs, none is trusted", bundle: written(t, pair, statement(), k, second, keyless.New()), berth: "not signed by a trusted log", reference: "not enough verified log entries"},
		judged{
			name: "a message in the place of a statement", bundle: written(t, pair, &sign.PlainData{Data: []byte("image")}, k, k), berth: "has no envelope of one signature",
			why: "it names no repository and is of bytes; cosign signs blobs like this, and images with statements",
		},
	)
	check(t, tr, rows)
}

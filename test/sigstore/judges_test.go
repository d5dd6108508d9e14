// Package sigstore compares berth's verification of sigstore's signatures with sigstore-go's, the reference: both get the
// same bundles, trust the same keys, and want the same identity.
package sigstore

import (
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/berthrun/berth/internal/image/imagetest/keyless"
	"github.com/berthrun/berth/internal/image/policy"
)

// The identity that is wanted, and the name of the image.
const (
	email  = "ci@example.com"
	issuer = "https://issuer.example"
	image  = "r.test/app"
)

func imageDigest() digest.Digest { return digest.FromString("image") }

// trust is what both verifiers trust.
type trust struct {
	// root and between are the certificates of an authority. root is nil where key must have signed.
	root    *x509.Certificate
	between []*x509.Certificate
	// key is in PEM.
	key  []byte
	logs []*keyless.Keyless
	// virtual has another authority and another log, in the place of root and logs.
	virtual *ca.VirtualSigstore
	// What follows is the reference's alone: how long a log's key and the authority are valid, logs of certificates, which
	// makes it want their timestamps, and authorities of timestamps, which it then wants in the place of the log's time.
	from, until time.Time
	ctlogs      map[string]*root.TransparencyLog
	tsas        []root.TimestampingAuthority
	// anyTime makes it want no time of a signature of the key, noLog no record.
	anyTime, noLog bool
}

func trusting(k *keyless.Keyless) *trust {
	return &trust{root: k.Root, logs: []*keyless.Keyless{k}, from: time.Unix(1, 0)}
}

// berth is berth's judgement of a signature.
func (tr *trust) berth(t *testing.T, s policy.Signature) error {
	t.Helper()
	requirement := map[string]any{"type": policy.SigstoreSigned, "signedIdentity": map[string]any{"type": "matchRepository"}}
	if tr.root != nil {
		authority := keyless.PEM(tr.root.Raw)
		for _, cert := range tr.between {
			authority = append(authority, keyless.PEM(cert.Raw)...)
		}
		requirement["fulcio"] = map[string]any{"caData": authority, "oidcIssuer": issuer, "subjectEmail": email}
	} else {
		requirement["keyData"] = tr.key
	}
	if keys := tr.logKeys(t); len(keys) > 0 {
		requirement["rekorPublicKeyDatas"] = keys
	}
	data, err := json.Marshal(map[string]any{"default": []any{requirement}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	rules, err := policy.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	name, err := reference.ParseDockerRef(image + ":1")
	if err != nil {
		t.Fatal(err)
	}
	return rules.For(name).Check(policy.Image{Name: name, Digests: []digest.Digest{imageDigest()}}, []policy.Signature{s})
}

// logKeys are the keys of the logs in PEM.
func (tr *trust) logKeys(t *testing.T) (keys [][]byte) {
	t.Helper()
	for _, log := range tr.logs {
		keys = append(keys, log.Rekor.PublicKey())
	}
	if tr.virtual == nil {
		return keys
	}
	for _, log := range tr.virtual.RekorLogs() {
		der, err := x509.MarshalPKIXPublicKey(log.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	return keys
}

// reference is the reference's judgement of a bundle. artifact says what must be signed.
func (tr *trust) reference(t *testing.T, data []byte, artifact verify.ArtifactPolicyOption) error {
	t.Helper()
	var read bundle.Bundle
	if err := read.UnmarshalJSON(data); err != nil {
		return err
	}
	verifier, err := verify.NewVerifier(tr.material(t), tr.options()...)
	if err != nil {
		t.Fatal(err)
	}
	who := verify.WithKey()
	if tr.root != nil {
		identity, err := verify.NewShortCertificateIdentity(issuer, "", email, "")
		if err != nil {
			t.Fatal(err)
		}
		who = verify.WithCertificateIdentity(identity)
	}
	_, err = verifier.Verify(&read, verify.NewPolicy(artifact, who))
	return err
}

// signsImage is what a bundle must sign.
func signsImage(t *testing.T) verify.ArtifactPolicyOption {
	t.Helper()
	sum, err := hex.DecodeString(imageDigest().Encoded())
	if err != nil {
		t.Fatal(err)
	}
	return verify.WithArtifactDigest("sha256", sum)
}

// options are those with which the reference wants what berth wants.
func (tr *trust) options() []verify.VerifierOption {
	var options []verify.VerifierOption
	if (len(tr.logs) > 0 || tr.virtual != nil) && !tr.noLog {
		options = append(options, verify.WithTransparencyLog(1))
	}
	switch {
	case tr.tsas != nil:
		options = append(options, verify.WithSignedTimestamps(1))
	case len(tr.logs) > 0 && !tr.anyTime:
		options = append(options, verify.WithIntegratedTimestamps(1))
	default:
		options = append(options, verify.WithNoObserverTimestamps())
	}
	if tr.ctlogs != nil {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	return options
}

// material is the reference's form of what is trusted.
func (tr *trust) material(t *testing.T) root.TrustedMaterial {
	t.Helper()
	if tr.virtual != nil {
		return tr.virtual
	}
	logs := map[string]*root.TransparencyLog{}
	for _, log := range tr.logs {
		logs[hex.EncodeToString(log.LogID())] = &root.TransparencyLog{
			BaseURL: "https://log.test", ID: log.LogID(), ValidityPeriodStart: tr.from, ValidityPeriodEnd: tr.until,
			HashFunc: crypto.SHA256, PublicKey: &log.Rekor.Key().PublicKey, SignatureHashFunc: crypto.SHA256,
		}
	}
	var authorities []root.CertificateAuthority
	if tr.root != nil {
		authorities = append(authorities, &root.FulcioCertificateAuthority{
			Root: tr.root, Intermediates: tr.between, ValidityPeriodStart: tr.from, ValidityPeriodEnd: tr.until,
		})
	}
	material, err := root.NewTrustedRoot(root.TrustedRootMediaType01, authorities, tr.ctlogs, tr.tsas, logs)
	if err != nil {
		t.Fatal(err)
	}
	if tr.key == nil {
		return material
	}
	verifier, err := signature.LoadDefaultVerifier(public(t, tr.key))
	if err != nil {
		t.Fatal(err)
	}
	// cosign names no key in a bundle, or by a hash of it: the reference gets the one key for every name.
	return root.TrustedMaterialCollection{material, root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return root.NewExpiringKey(verifier, time.Time{}, time.Time{}), nil
	})}
}

// judged is a bundle, and what both verifiers must say of it.
type judged struct {
	name string
	// trust is nil for that of the test.
	trust  *trust
	bundle []byte
	// berth and reference are parts of the errors with which they refuse it, "" if they accept it.
	berth, reference string
	// why is the reason for a difference.
	why string
}

// check compares the judgements with those that are wanted.
func check(t *testing.T, tr *trust, rows []judged) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if row.trust == nil {
				row.trust = tr
			}
			says(t, "berth", row.trust.berth(t, policy.Signature{Place: "bundle", Bundle: row.bundle}), row.berth)
			says(t, "sigstore-go", row.trust.reference(t, row.bundle, signsImage(t)), row.reference)
			row.argued(t)
		})
	}
}

// argued fails if a difference has no reason, or a reason has no difference.
func (j *judged) argued(t *testing.T) {
	t.Helper()
	if differ := (j.berth == "") != (j.reference == ""); differ != (j.why != "") {
		t.Errorf("they differ: %v, and the reason is %q", differ, j.why)
	}
}

func says(t *testing.T, who string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s says %v, want %q", who, err, want)
	}
}

func public(t *testing.T, key []byte) crypto.PublicKey {
	t.Helper()
	block, _ := pem.Decode(key)
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

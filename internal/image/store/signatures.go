package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/lookaside"
	"github.com/berthrun/berth/internal/image/policy"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
)

// What is read of signatures at most for one decision: a registry may have any number of any size.
const (
	maxSignatures    = 64
	maxSignatureBlob = 1 << 20
)

// The formats of cosign.
const (
	claimType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	annotated  = "dev.cosignproject.cosign/signature"
)

// wanted fetches the signatures of a manifest that the rules want, the first of them up to most. ctx has a lease.
func (s *Store) wanted(
	ctx context.Context, required policy.Rules, named reference.Named, dgst digest.Digest, auth image.Auth, rules *PullRules, most int, m *progress.Meter,
) (found []policy.Signature, err error) {
	if required.Wants(policy.SignedBy) {
		if found, err = simpleSignatures(ctx, named, dgst, rules, most, m); err != nil {
			return nil, err
		}
	}
	if !required.Wants(policy.SigstoreSigned) {
		return found, nil
	}
	more, err := s.signatures(ctx, named, dgst, auth, rules, most-len(found), m)
	return append(found, more...), err
}

// simpleSignatures fetches the simple signatures of a manifest, which lie beside the registry.
func simpleSignatures(ctx context.Context, named reference.Named, dgst digest.Digest, rules *PullRules, most int, m *progress.Meter) ([]policy.Signature, error) {
	places, err := lookaside.Read(rules.LookasideDir)
	if err != nil {
		return nil, fmt.Errorf("image.lookaside_dir: %w", err)
	}
	end := m.Transfer()
	all, err := lookaside.Fetch(ctx, places.Base(policy.Scopes(named)), named, dgst, most, m.Touch)
	end()
	if err != nil {
		return nil, err
	}
	found := make([]policy.Signature, 0, len(all))
	for _, one := range all {
		found = append(found, policy.Signature{Place: one.Place, Simple: one.Data, Fault: one.Fault})
	}
	return found, nil
}

// signatures fetches the signatures of cosign of a manifest, the first of them up to most: those of the tag sha256-DIGEST.sig, and
// the bundles that refer to it. ctx has a lease.
func (s *Store) signatures(
	ctx context.Context, named reference.Named, dgst digest.Digest, auth image.Auth, rules *PullRules, most int, m *progress.Meter,
) ([]policy.Signature, error) {
	if most <= 0 {
		return nil, nil
	}
	tag, err := reference.WithTag(reference.TrimNamed(named), strings.Replace(dgst.String(), ":", "-", 1)+".sig")
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w: %w", dgst, err, errs.Invalid)
	}
	remote, err := s.openRegistry(ctx, tag, auth, rules)
	if err != nil {
		return nil, err
	}
	defer remote.Close()
	var found []policy.Signature
	end := m.Transfer()
	desc, err := remote.Resolve(ctx)
	end()
	if err == nil {
		found, err = s.signaturesIn(ctx, remote, desc, tag.String(), most, m)
	}
	if errs.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot fetch the signatures %s: %w", tag, err)
	}
	end = m.Transfer()
	referrers, err := remote.Referrers(ctx, dgst, bundleType)
	end()
	if errs.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot fetch the signatures that refer to %s: %w", dgst, err)
	}
	for _, referrer := range referrers[:min(len(referrers), maxSignatures)] {
		if len(found) >= most {
			break
		}
		more, err := s.signaturesIn(ctx, remote, referrer, "referrer "+referrer.Digest.String(), most-len(found), m)
		if errs.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("cannot fetch a signature of %s: %w", dgst, err)
		}
		found = append(found, more...)
	}
	return found, nil
}

// signaturesIn reads the signatures of a manifest of them, the first of them up to most. One that cannot be used is
// returned with its fault, so that it does not hide others.
func (s *Store) signaturesIn(ctx context.Context, remote *registry.Repository, desc imagespec.Descriptor, place string, most int, m *progress.Meter) ([]policy.Signature, error) {
	data, err := s.smallBlob(ctx, remote, desc, m)
	if errors.Is(err, errs.Invalid) || errors.Is(err, errs.Denied) {
		return []policy.Signature{{Place: place, Fault: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	var manifest imagespec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return []policy.Signature{{Place: place, Fault: "it is not a manifest: " + err.Error()}}, nil
	}
	var found []policy.Signature
	for _, layer := range manifest.Layers[:min(len(manifest.Layers), most)] {
		sig := policy.Signature{Place: place}
		if layer.MediaType != claimType && layer.MediaType != bundleType {
			sig.Fault = fmt.Sprintf("it has the media type %q, not one of cosign's", layer.MediaType)
			found = append(found, sig)
			continue
		}
		data, err := s.smallBlob(ctx, remote, layer, m)
		switch {
		case errors.Is(err, errs.Invalid), errors.Is(err, errs.Denied):
			sig.Fault = err.Error()
		case err != nil:
			return nil, err
		case layer.MediaType == bundleType:
			sig.Bundle = data
		default:
			sig.Payload, sig.Signature = data, layer.Annotations[annotated]
			sig.Certificate = layer.Annotations["dev.sigstore.cosign/certificate"]
			sig.Chain = layer.Annotations["dev.sigstore.cosign/chain"]
			sig.Rekor = layer.Annotations["dev.sigstore.cosign/bundle"]
		}
		found = append(found, sig)
	}
	return found, nil
}

// smallBlob fetches a blob of bounded size.
func (s *Store) smallBlob(ctx context.Context, remote *registry.Repository, desc imagespec.Descriptor, m *progress.Meter) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, errs.Invalid)
	}
	if desc.Size > maxSignatureBlob {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read: %w", desc.Size, maxSignatureBlob, errs.Invalid)
	}
	if err := s.fetch(ctx, remote, desc, downloads.Turn{}, m, func(int64) { m.Touch() }); err != nil {
		return nil, err
	}
	// The store may have had the blob, such as a layer of another image, in another size than the descriptor says.
	if err := s.db.Present(ctx, desc); err != nil {
		return nil, err
	}
	desc.Data = nil
	return content.ReadBlob(ctx, s.db.Content, desc)
}

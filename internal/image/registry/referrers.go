package registry

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Referrers returns the manifests of an artifact type, or of all if it is "", that refer to a manifest, from
// the first endpoint that has some.
func (r *Repository) Referrers(ctx context.Context, dgst digest.Digest, artifactType string) ([]imagespec.Descriptor, error) {
	var faults []fault
	var only []remotes.FetchReferrersOpt
	if artifactType != "" {
		only = append(only, remotes.WithReferrerArtifactTypes(artifactType))
	}
	answered := false
	for _, e := range r.order(docker.HostCapabilityPull) {
		fetcher, ok := e.fetcher.(remotes.ReferrersFetcher)
		if !ok {
			continue
		}
		found, err := fetcher.FetchReferrers(ctx, dgst, only...)
		if err = r.judge(ctx, e, fmt.Sprintf("a list of what refers to %s of %s", dgst, r.path), err); err != nil {
			faults = append(faults, fault{e, err})
			continue
		}
		if answered = true; len(found) > 0 {
			return found, nil
		}
	}
	if answered {
		return nil, nil
	}
	return nil, r.creds.scrub(r.failure(faults))
}

package assets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// manifestLimit bounds a manifest.
const manifestLimit = 4 << 20

// pull opens the layer of an artifact whose digest is the asset's, or, when that is the
// manifest's, its only layer. The size is the manifest's.
func (r reach) pull(ctx context.Context, ref provision.AssetRef, name, header string) (body io.ReadCloser, size int64, err error) {
	// What the library would log holds URLs.
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	ctx = log.WithLogger(ctx, logrus.NewEntry(silent))
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: r.registries(header)})
	name, desc, err := resolver.Resolve(ctx, name)
	if err != nil {
		return nil, 0, r.ociError("cannot resolve it", header, err)
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return nil, 0, r.ociError("cannot fetch it", header, err)
	}
	layer, err := findLayer(ctx, fetcher, desc, digest.Digest(ref.Digest))
	if err != nil {
		return nil, 0, r.ociError("cannot find its layer", header, err)
	}
	body, err = fetcher.Fetch(ctx, layer)
	if err != nil {
		return nil, 0, r.ociError("cannot fetch its layer", header, err)
	}
	return body, layer.Size, nil
}

// findLayer walks from an index or manifest to the layer that is wanted.
func findLayer(ctx context.Context, fetcher remotes.Fetcher, desc ocispec.Descriptor, want digest.Digest) (ocispec.Descriptor, error) {
	data, err := fetchSmall(ctx, fetcher, desc)
	if err != nil {
		return desc, err
	}
	if images.IsIndexType(desc.MediaType) {
		var index ocispec.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return desc, fmt.Errorf("its index is not JSON: %w: %w", errs.Invalid, err)
		}
		for _, m := range index.Manifests {
			if m.Digest == want || m.Platform == nil || platforms.Default().Match(*m.Platform) {
				return findLayer(ctx, fetcher, m, want)
			}
		}
		return desc, fmt.Errorf("its index has nothing for %s: %w", platforms.DefaultString(), errs.NotFound)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return desc, fmt.Errorf("its manifest is not JSON: %w: %w", errs.Invalid, err)
	}
	for _, layer := range manifest.Layers {
		if layer.Digest == want {
			return layer, nil
		}
	}
	return desc, fmt.Errorf("none of its %d layers has digest %s: %w", len(manifest.Layers), want, errs.Invalid)
}

func fetchSmall(ctx context.Context, fetcher remotes.Fetcher, desc ocispec.Descriptor) ([]byte, error) {
	r, err := fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch its manifest: %w", err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, manifestLimit))
	if err != nil {
		return nil, fmt.Errorf("cannot fetch its manifest: %w: %w", errs.Unavailable, err)
	}
	if digest.FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("its manifest does not have digest %s: %w", desc.Digest, errs.Invalid)
	}
	return data, nil
}

// ociError gives an error of the registry its kind. It leaves out URLs: those of another server may
// be signed.
func (r reach) ociError(what, header string, err error) error {
	var status remoteerrors.ErrUnexpectedStatus
	switch {
	case errs.Kind(err) != nil:
		return err
	case errors.As(err, &status):
		return fmt.Errorf("%s: %w", what, r.answered(status.StatusCode, header))
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return fmt.Errorf("%s: the registry refuses%s: %w", what, r.refused(header), errs.NotFound)
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err):
		return fmt.Errorf("%s: %w: %w", what, errs.NotFound, bare(err))
	}
	return fmt.Errorf("%s: %w", what, unanswered(err))
}

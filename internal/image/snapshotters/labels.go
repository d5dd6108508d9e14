package snapshotters

import (
	"context"
	"fmt"
	"maps"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// LabelsOf returns the labels of an image's layers by which snapshotters fetch them, as containerd sets them: the name of
// the image, the digests of its manifest and layers (containerd.io/snapshot/cri.*), and those annotations of the layers
// that are for snapshotters (containerd.io/snapshot/*).
func LabelsOf(ctx context.Context, ref string, manifest imagespec.Descriptor, layers []imagespec.Descriptor) ([]map[string]string, error) {
	described, err := snapshotters.AppendInfoHandlerWrapper(ref)(images.HandlerFunc(
		func(context.Context, imagespec.Descriptor) ([]imagespec.Descriptor, error) {
			own := make([]imagespec.Descriptor, len(layers))
			for i, layer := range layers {
				own[i] = layer
				own[i].Annotations = maps.Clone(layer.Annotations) // the wrapper adds to them
			}
			return own, nil
		})).Handle(ctx, manifest)
	if err != nil {
		return nil, err
	}
	labels := make([]map[string]string, len(described))
	for i, layer := range described {
		labels[i] = snapshots.FilterInheritedLabels(layer.Annotations)
	}
	return labels, nil
}

// Chains returns the chains of an image's layers, lowest first: snapshotters have the layers by these names. A chain covers
// the digest of the layer, its annotations that are for snapshotters, and the same of all layers below. The chain ids of the
// image's config are no such names: nothing compares with them what a snapshotter fetches, so an image with the config of
// another one could put its own files in the place of that image's layers.
func Chains(layers []imagespec.Descriptor) []string {
	chains, parent := make([]string, len(layers)), ""
	for i, layer := range layers {
		// fmt sorts the keys of a map.
		text := fmt.Sprintf("%s %s %q", parent, layer.Digest, snapshots.FilterInheritedLabels(layer.Annotations))
		parent = digest.FromString(text).String()
		chains[i] = parent
	}
	return chains
}

// TopChain returns the last of Chains, "" for no layers.
func TopChain(layers []imagespec.Descriptor) string {
	chains := Chains(layers)
	if len(chains) == 0 {
		return ""
	}
	return chains[len(chains)-1]
}

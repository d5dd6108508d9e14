package snapshotters

import (
	"context"
	"maps"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
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

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// maxDocument bounds manifests, indexes and configs, which are held in memory.
	maxDocument = 8 << 20
	// maxIndexDepth bounds indexes in indexes.
	maxIndexDepth = 4
	maxLayers     = 500
	// maxAnnotations bounds an image's annotations, in bytes: a list of all images is
	// one message.
	maxAnnotations = 16 << 10
	// maxLayer is more than any layer has; with maxLayers their sum is a number, too.
	maxLayer = 1 << 40
)

// tree is an image as content has it: from what its name points to down to the
// layers of this node's platform.
type tree struct {
	// target is what the name points to: an index, or the manifest itself.
	target imagespec.Descriptor
	// indexes lead from target to manifest.
	indexes  []imagespec.Descriptor
	manifest imagespec.Descriptor
	config   imagespec.Descriptor
	layers   []imagespec.Descriptor
	image    imagespec.Image
	// annotations are the manifest's, nil when there are too many.
	annotations map[string]string
}

// id of the image.
func (t *tree) id() string { return t.config.Digest.String() }

// chains are the names of the image's snapshots, lowest first.
func (t *tree) chains() []string {
	ids := identity.ChainIDs(slices.Clone(t.image.RootFS.DiffIDs))
	chains := make([]string, len(ids))
	for i, id := range ids {
		chains[i] = id.String()
	}
	return chains
}

// size is what the image's content takes.
func (t *tree) size() int64 {
	size := t.manifest.Size + t.config.Size
	seen := map[digest.Digest]bool{}
	for _, layer := range t.layers {
		if !seen[layer.Digest] {
			size += layer.Size
		}
		seen[layer.Digest] = true
	}
	return size
}

// provide sees to it that the content store has what desc describes.
type provide func(ctx context.Context, desc imagespec.Descriptor) error

// present is the provide for content that must be there already.
func (s *Images) present(ctx context.Context, desc imagespec.Descriptor) error {
	info, err := s.content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("blob %s is missing: %w", desc.Digest, errs.Invalid)
	}
	if err == nil && info.Size != desc.Size {
		return fmt.Errorf("blob %s has %d bytes, its descriptor says %d: %w", desc.Digest, info.Size, desc.Size, errs.Invalid)
	}
	return err
}

// readTree reads the documents of the image that target describes, for this
// node's platform. name is for messages. Unsupported when it is for others only.
func (s *Images) readTree(ctx context.Context, name string, target imagespec.Descriptor, provide provide) (*tree, error) {
	t := &tree{target: target}
	at := target
	for {
		if len(t.indexes) > maxIndexDepth {
			return nil, fmt.Errorf("image %s: more than %d indexes in indexes: %w", name, maxIndexDepth, errs.Invalid)
		}
		document, err := s.readDocument(ctx, at, provide)
		if err != nil {
			return nil, err
		}
		if !isIndex(at, document) {
			t.manifest = at
			return t, s.readManifest(ctx, name, t, document, provide)
		}
		t.indexes = append(t.indexes, at)
		if at, err = s.choose(name, document); err != nil {
			return nil, err
		}
	}
}

// readDocument gets a small JSON document and checks that it is no other.
func (s *Images) readDocument(ctx context.Context, desc imagespec.Descriptor, provide provide) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, errs.Invalid)
	}
	if desc.Size <= 0 || desc.Size > maxDocument {
		return nil, fmt.Errorf("%s %s claims %d bytes, at most %d are read: %w", desc.MediaType, desc.Digest, desc.Size, maxDocument, errs.Invalid)
	}
	if err := provide(ctx, desc); err != nil {
		return nil, err
	}
	desc.Data = nil
	data, err := content.ReadBlob(ctx, s.content, desc)
	if err != nil {
		return nil, fmt.Errorf("cannot read blob %s: %w", desc.Digest, err)
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("%s %s is no JSON: %w", desc.MediaType, desc.Digest, errs.Invalid)
	}
	return data, nil
}

func isIndex(desc imagespec.Descriptor, document []byte) bool {
	if images.IsIndexType(desc.MediaType) {
		return true
	}
	if images.IsManifestType(desc.MediaType) {
		return false
	}
	var head struct {
		Manifests json.RawMessage `json:"manifests"`
	}
	return json.Unmarshal(document, &head) == nil && head.Manifests != nil
}

// choose picks the manifest of an index that fits this node best.
func (s *Images) choose(name string, document []byte) (imagespec.Descriptor, error) {
	var index imagespec.Index
	if err := json.Unmarshal(document, &index); err != nil {
		return imagespec.Descriptor{}, fmt.Errorf("image %s: cannot read its index: %w: %w", name, err, errs.Invalid)
	}
	var best *imagespec.Descriptor
	var others []string
	for i := range index.Manifests {
		desc := &index.Manifests[i]
		switch {
		case desc.Platform == nil:
			// Only its config tells: taken if nothing else fits.
			if best == nil {
				best = desc
			}
		case !s.platform.Match(*desc.Platform):
			others = append(others, platforms.Format(*desc.Platform))
		case best == nil || best.Platform == nil || s.platform.Less(*desc.Platform, *best.Platform):
			best = desc
		}
	}
	if best == nil {
		return imagespec.Descriptor{}, wrongPlatform(name, others)
	}
	return *best, nil
}

func wrongPlatform(name string, has []string) error {
	has = slices.DeleteFunc(has, func(p string) bool { return strings.HasPrefix(p, "unknown") })
	if len(has) == 0 {
		has = []string{"for no platform"}
	}
	return fmt.Errorf("image %s is %s, this node is %s: %w", name, strings.Join(has, ", "),
		platforms.Format(platforms.DefaultSpec()), errs.Unsupported)
}

func (s *Images) readManifest(ctx context.Context, name string, t *tree, document []byte, provide provide) error {
	var manifest imagespec.Manifest
	if err := json.Unmarshal(document, &manifest); err != nil {
		return fmt.Errorf("image %s: cannot read its manifest: %w: %w", name, err, errs.Invalid)
	}
	t.config, t.layers, t.annotations = manifest.Config, manifest.Layers, bounded(manifest.Annotations)
	data, err := s.readDocument(ctx, t.config, provide)
	if err != nil {
		return fmt.Errorf("image %s: its config: %w", name, err)
	}
	if err := json.Unmarshal(data, &t.image); err != nil {
		return fmt.Errorf("image %s: cannot read its config: %w: %w", name, err, errs.Invalid)
	}
	return s.checkImage(name, t)
}

func bounded(annotations map[string]string) map[string]string {
	size := 0
	for key, value := range annotations {
		if size += len(key) + len(value); size > maxAnnotations {
			return nil
		}
	}
	return annotations
}

func (s *Images) checkImage(name string, t *tree) error {
	host := platforms.DefaultSpec()
	// Old builders wrote no platform; it was the one of their host.
	if t.image.OS == "" {
		t.image.OS = host.OS
	}
	if t.image.Architecture == "" {
		t.image.Architecture = host.Architecture
	}
	if t.config.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("image %s: its config has a %s digest, and ids of images are made of sha256: %w", name, t.config.Digest.Algorithm(), errs.Unsupported)
	}
	if !s.platform.Match(platforms.Normalize(t.image.Platform)) {
		return wrongPlatform(name, []string{platforms.Format(t.image.Platform)})
	}
	if len(t.layers) != len(t.image.RootFS.DiffIDs) {
		return fmt.Errorf("image %s: its manifest has %d layers, its config %d: %w", name, len(t.layers), len(t.image.RootFS.DiffIDs), errs.Invalid)
	}
	if len(t.layers) == 0 || len(t.layers) > maxLayers {
		return fmt.Errorf("image %s has %d layers, want 1 to %d: %w", name, len(t.layers), maxLayers, errs.Invalid)
	}
	for i, layer := range t.layers {
		err := errors.Join(layer.Digest.Validate(), t.image.RootFS.DiffIDs[i].Validate())
		if err != nil || layer.Size < 0 || layer.Size > maxLayer {
			return fmt.Errorf("image %s: layer %d: digest %q, diff id %q, %d bytes: %w: %w", name, i, layer.Digest, t.image.RootFS.DiffIDs[i], layer.Size, err, errs.Invalid)
		}
		if !isLayer(layer.MediaType) {
			return fmt.Errorf("image %s: layer %d is %s: %w", name, i, layer.MediaType, errs.Unsupported)
		}
	}
	return nil
}

// isLayer reports whether the helper can unpack the type: tar, plain, gzip or zstd.
func isLayer(mediaType string) bool {
	return images.IsLayerType(mediaType) && !strings.Contains(mediaType, "encrypted")
}

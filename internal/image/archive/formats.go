package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
)

// Layout reads the oci-layout file and the index.json of an OCI image layout, and returns
// the images that it lists, with the names that it gives them. The error is Invalid.
func Layout(layoutFile, indexFile []byte) ([]Image, error) {
	var layout imagespec.ImageLayout
	if err := json.Unmarshal(layoutFile, &layout); err != nil || layout.Version != imagespec.ImageLayoutVersion {
		return nil, fmt.Errorf("%q: version %q, want %s: %w", imagespec.ImageLayoutFile, layout.Version, imagespec.ImageLayoutVersion, errs.Invalid)
	}
	var index imagespec.Index
	if err := json.Unmarshal(indexFile, &index); err != nil {
		return nil, fmt.Errorf("%q: %w: %w", imagespec.ImageIndexFile, err, errs.Invalid)
	}
	var found []Image
	byDigest := map[digest.Digest]int{}
	for _, desc := range index.Manifests {
		names, err := layoutNames(desc.Annotations, desc.Digest)
		if err != nil {
			return nil, err
		}
		if i, ok := byDigest[desc.Digest]; ok {
			found[i].Names = append(found[i].Names, names...)
			continue
		}
		byDigest[desc.Digest] = len(found)
		desc.Data, desc.URLs = nil, nil
		found = append(found, Image{Names: names, Target: desc})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%q lists no image: %w", imagespec.ImageIndexFile, errs.Invalid)
	}
	return found, nil
}

// layoutNames reads the names that tools give an image of a layout: containerd
// and docker a full reference in an annotation of their own, others either a full
// reference or a bare tag, which names nothing by itself. A name with a digest counts if it is that of target.
func layoutNames(annotations map[string]string, target digest.Digest) ([]reference.Named, error) {
	name := annotations[images.AnnotationImageName]
	if name == "" {
		name = annotations[imagespec.AnnotationRefName]
		if !strings.ContainsAny(name, ":/") {
			return nil, nil
		}
	}
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, fmt.Errorf("image name %q: %w: %w", name, err, errs.Invalid)
	}
	if by, ok := named.(reference.Digested); ok && by.Digest() != target {
		return nil, nil
	}
	return []reference.Named{named}, nil
}

// dockerEntry is one image in manifest.json.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// docker interprets the archive as docker save writes it, and makes the manifests
// that it lacks.
func (r *reader) docker(ctx context.Context) ([]Image, error) {
	var entries []dockerEntry
	if err := json.Unmarshal(r.documents[dockerManifest], &entries); err != nil {
		return nil, fmt.Errorf("archive entry %q: %w: %w", dockerManifest, err, errs.Invalid)
	}
	names := 0
	for _, entry := range entries {
		names += len(entry.RepoTags)
		if len(entry.Layers) > tree.MaxLayers {
			return nil, fmt.Errorf("archive entry %q: the image with the config %.100q has %d layers, at most %d are taken: %w",
				dockerManifest, entry.Config, len(entry.Layers), tree.MaxLayers, errs.Invalid)
		}
	}
	if len(entries) > maxEntries || names > maxEntries {
		return nil, fmt.Errorf("archive entry %q lists %d images with %d names, at most %d of each are taken: %w", dockerManifest, len(entries), names, maxEntries, errs.Invalid)
	}
	var found []Image
	for _, entry := range entries {
		image, err := r.dockerImage(ctx, entry)
		if err != nil {
			return nil, err
		}
		found = append(found, *image)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("archive entry %q lists no image: %w", dockerManifest, errs.Invalid)
	}
	return found, nil
}

func (r *reader) dockerImage(ctx context.Context, entry dockerEntry) (*Image, error) {
	config, err := r.lookup(entry.Config)
	if err != nil {
		return nil, err
	}
	config.MediaType = imagespec.MediaTypeImageConfig
	manifest := imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: imagespec.MediaTypeImageManifest,
		Config:    config,
	}
	for _, name := range entry.Layers {
		layer, err := r.lookup(name)
		if err != nil {
			return nil, err
		}
		if layer.MediaType, err = r.layerType(ctx, layer); err != nil {
			return nil, fmt.Errorf("cannot read archive entry %q: %w", name, err)
		}
		manifest.Layers = append(manifest.Layers, layer)
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	desc := imagespec.Descriptor{MediaType: manifest.MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	target, err := r.write(ctx, "made manifest", desc, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	image := &Image{Target: target}
	for _, tag := range entry.RepoTags {
		named, err := reference.ParseDockerRef(tag)
		if err != nil {
			return nil, fmt.Errorf("image name %q in the archive: %w: %w", tag, err, errs.Invalid)
		}
		image.Names = append(image.Names, named)
	}
	return image, nil
}

// lookup finds a file of the archive, through at most one link.
func (r *reader) lookup(name string) (imagespec.Descriptor, error) {
	name = path.Clean(name)
	if target, ok := r.links[name]; ok {
		name = target
	}
	desc, ok := r.blobs[name]
	if !ok {
		return desc, fmt.Errorf("the archive lacks %q, which manifest.json names: %w", name, errs.Invalid)
	}
	return desc, nil
}

// layerType detects the compression of a layer by its first bytes.
func (r *reader) layerType(ctx context.Context, layer imagespec.Descriptor) (string, error) {
	ra, err := r.store.ReaderAt(ctx, layer)
	if err != nil {
		return "", err
	}
	defer ra.Close()
	magic := make([]byte, 4)
	if _, err := io.ReadFull(content.NewReader(ra), magic); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return imagespec.MediaTypeImageLayerGzip, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return imagespec.MediaTypeImageLayerZstd, nil
	}
	return imagespec.MediaTypeImageLayer, nil
}

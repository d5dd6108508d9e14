package imagefile

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// dockerImage is an image of a docker archive.
type dockerImage struct {
	names  []string
	config []byte
	layers []dockerLayer
}

// dockerLayer is one of its layers. diffID is the digest of the unpacked content.
type dockerLayer struct {
	entry
	diffID digest.Digest
	desc   imagespec.Descriptor
}

// readDocker reads manifest.json.
func (f *File) readDocker() error {
	var all []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := f.decode(dockerManifest, &all); err != nil {
		return err
	}
	for _, one := range all {
		img, err := f.dockerImage(one.Config, one.Layers)
		if err != nil {
			return err
		}
		found := Image{ID: digest.FromBytes(img.config).String()}
		for _, tag := range one.RepoTags {
			name, err := fullName(tag)
			if err != nil {
				return err
			}
			found.addName(name)
		}
		img.names = found.Names
		f.docker = append(f.docker, img)
		f.Images = append(f.Images, found)
	}
	if len(all) == 0 {
		return fmt.Errorf("its manifest.json lists no image: %w", errs.Invalid)
	}
	return nil
}

func (f *File) dockerImage(config string, layers []string) (dockerImage, error) {
	var img dockerImage
	var err error
	if img.config, err = f.document(config); err != nil {
		return img, err
	}
	var inside imagespec.Image
	if err := json.Unmarshal(img.config, &inside); err != nil {
		return img, fmt.Errorf("entry %q: %w: %w", config, errs.Invalid, err)
	}
	ids := inside.RootFS.DiffIDs
	if len(ids) != len(layers) || len(layers) > maxLayers {
		return img, fmt.Errorf("manifest.json names %d layers, and %q %d of them; at most %d are taken: %w", len(layers), config, len(ids), maxLayers, errs.Invalid)
	}
	for i, name := range layers {
		if err := ids[i].Validate(); err != nil {
			return img, fmt.Errorf("entry %q: layer %d: %w: %w", config, i, errs.Invalid, err)
		}
		layer := dockerLayer{diffID: ids[i]}
		if layer.entry, err = f.lookup(name); err != nil {
			return img, err
		}
		if layer.desc, err = f.describe(layer); err != nil {
			return img, fmt.Errorf("layer %q: %w", name, err)
		}
		img.layers = append(img.layers, layer)
	}
	return img, nil
}

// describe returns the descriptor of a layer in the archive. Uncompressed content has the digest of
// the configuration; the receiver refuses it otherwise.
func (f *File) describe(l dockerLayer) (imagespec.Descriptor, error) {
	desc := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Digest: l.diffID, Size: l.size}
	magic := make([]byte, 4)
	n, err := f.section(l.entry).Read(magic)
	if err != nil && n == 0 && l.size > 0 {
		return desc, err
	}
	switch magic = magic[:n]; {
	case bytes.HasPrefix(magic, gzipMagic()):
		desc.MediaType = imagespec.MediaTypeImageLayerGzip
	case bytes.Equal(magic, zstdMagic()):
		desc.MediaType = imagespec.MediaTypeImageLayerZstd
	default:
		return desc, nil
	}
	desc.Digest, err = digest.FromReader(f.section(l.entry))
	return desc, err
}

// manifest is the manifest of an image, with the receiver's layers instead of the archive's.
func (i dockerImage) manifest(has Has) ([]byte, error) {
	m := imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest,
		Config: imagespec.Descriptor{MediaType: imagespec.MediaTypeImageConfig, Digest: digest.FromBytes(i.config), Size: int64(len(i.config))},
	}
	for _, l := range i.layers {
		m.Layers = append(m.Layers, has.instead(l))
	}
	return json.Marshal(m)
}

// instead is the receiver's content for a layer, or the archive's.
func (h Has) instead(l dockerLayer) imagespec.Descriptor {
	if h.Blobs[l.desc.Digest] {
		return l.desc
	}
	if own, ok := h.Layers[l.diffID]; ok {
		return own
	}
	return l.desc
}

// writeDocker writes an OCI layout of a docker archive's images.
func (f *File) writeDocker(w *writer, has Has) error {
	index := imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex}
	if err := w.json(imagespec.ImageLayoutFile, imagespec.ImageLayout{Version: imagespec.ImageLayoutVersion}); err != nil {
		return err
	}
	for _, img := range f.docker {
		text, err := img.manifest(has)
		if err != nil {
			return err
		}
		desc := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromBytes(text), Size: int64(len(text))}
		index.Manifests = append(index.Manifests, named(desc, img.names)...)
		if err := w.document(blobName(desc.Digest), text); err != nil {
			return err
		}
		if err := w.document(blobName(digest.FromBytes(img.config)), img.config); err != nil {
			return err
		}
		for _, l := range img.layers {
			if chosen := has.instead(l); chosen.Digest != l.desc.Digest || has.Blobs[chosen.Digest] {
				w.skip(blobName(l.desc.Digest), l.size)
				continue
			}
			if err := w.layer(blobName(l.desc.Digest), f.section(l.entry)); err != nil {
				return err
			}
		}
	}
	return w.json(imagespec.ImageIndexFile, index)
}

// annotationName is the annotation in which containerd, docker and berth look for an image's full
// name.
const annotationName = "io.containerd.image.name"

// named is a manifest in an index, once for each name.
func named(desc imagespec.Descriptor, names []string) []imagespec.Descriptor {
	if len(names) == 0 {
		return []imagespec.Descriptor{desc}
	}
	var all []imagespec.Descriptor
	for _, name := range names {
		desc.Annotations = map[string]string{annotationName: name}
		all = append(all, desc)
	}
	return all
}

// fullName is a name as registries and runtimes have it; "" for a digest.
func fullName(text string) (string, error) {
	name, err := reference.ParseDockerRef(text)
	if err != nil {
		return "", fmt.Errorf("its image is called %q: %w: %w", text, errs.Invalid, err)
	}
	if _, digested := name.(reference.Digested); digested {
		return "", nil // it follows from the content
	}
	return name.String(), nil
}

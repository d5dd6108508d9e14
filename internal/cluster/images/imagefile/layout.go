package imagefile

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// readLayout reads the index of an OCI layout, and what it leads to.
func (f *File) readLayout() error {
	var index imagespec.Index
	if err := f.decode(imagespec.ImageIndexFile, &index); err != nil {
		return err
	}
	at := map[digest.Digest]int{}
	for _, desc := range index.Manifests {
		name, err := layoutName(desc.Annotations)
		if err != nil {
			return err
		}
		i, known := at[desc.Digest]
		if !known {
			ids, err := f.walk(desc, 0)
			if err != nil {
				return err
			}
			i = len(f.Images)
			at[desc.Digest] = i
			f.Images = append(f.Images, Image{ID: only(ids)})
		}
		f.Images[i].addName(name)
	}
	if len(f.Images) == 0 {
		return fmt.Errorf("its index.json lists no image: %w", errs.Invalid)
	}
	return nil
}

// only is the ID of an image that exists for one platform, ours.
func only(ids []string) string {
	if len(ids) == 1 {
		return ids[0]
	}
	return ""
}

// manifest has the fields that are read of manifests and indexes.
type manifest struct {
	Manifests []imagespec.Descriptor
	Config    imagespec.Descriptor
	Layers    []imagespec.Descriptor
}

// walk notes the layers that a manifest or an index leads to, and returns the IDs of images for
// this platform. A missing file belongs to another platform, or the receiver reports it.
func (f *File) walk(desc imagespec.Descriptor, depth int) (ids []string, err error) {
	if ids, known := f.walked[desc.Digest]; known {
		return ids, nil
	}
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("it names content %q: %w: %w", desc.Digest, errs.Invalid, err)
	}
	if _, there := f.entries[blobName(desc.Digest)]; !there {
		return nil, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("it has more than %d indexes in indexes: %w", maxDepth, errs.Invalid)
	}
	var m manifest
	if err := f.decode(blobName(desc.Digest), &m); err != nil {
		return nil, err
	}
	for _, below := range m.Manifests {
		more, err := f.walk(below, depth+1)
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	for _, layer := range m.Layers {
		f.layers[layer.Digest] = true
	}
	if m.Config.Digest != "" && f.ours(desc, m.Config) {
		ids = append(ids, m.Config.Digest.String())
	}
	f.walked[desc.Digest] = ids
	return ids, nil
}

// ours reports whether a manifest is of an image for this platform.
func (f *File) ours(desc, config imagespec.Descriptor) bool {
	if p := desc.Platform; p != nil {
		return p.OS == "linux" && p.Architecture == runtime.GOARCH
	}
	if config.Digest.Validate() != nil {
		return false
	}
	var image imagespec.Image
	err := f.decode(blobName(config.Digest), &image)
	return err == nil && (image.Architecture == "" || image.Architecture == runtime.GOARCH)
}

// layoutName is the full name that tools give an image of a layout; a tag alone is not a name.
func layoutName(annotations map[string]string) (string, error) {
	name := annotations[annotationName]
	if name == "" {
		if name = annotations[imagespec.AnnotationRefName]; !strings.ContainsAny(name, ":/") {
			return "", nil
		}
	}
	return fullName(name)
}

// writeLayout copies an OCI layout without layers that the receiver has.
func (f *File) writeLayout(w *writer, has Has) error {
	for _, name := range f.names {
		at := f.entries[name]
		d := digestOf(name)
		switch {
		case !f.layers[d]:
			if err := w.copy(name, f.section(at)); err != nil {
				return err
			}
		case has.Blobs[d]:
			w.skip(name, at.size)
		default:
			if err := w.layer(name, f.section(at)); err != nil {
				return err
			}
		}
	}
	return nil
}

package handover

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// image is one image of the old runtime.
type image struct {
	// names are full references, digest that of the manifest or index.
	names  []string
	digest digest.Digest
}

// maxManifest bounds a manifest or index.
const maxManifest = 8 << 20

// archiver writes images as OCI archives out of a directory of blobs.
type archiver struct {
	files   provision.Files
	content string
}

func (a archiver) blob(d digest.Digest) string {
	return path.Join(a.content, d.Algorithm().String(), d.Encoded())
}

// plan lists the blobs of an image in the order in which they are written, and the descriptor of
// its top. It leaves out manifests of an index that the store does not have (other platforms); at
// least one manifest must be complete. errs.NotFound: content is missing, for example because the
// runtime discards unpacked layers.
func (a archiver) plan(img image) (imagespec.Descriptor, []digest.Digest, error) {
	top, children, err := a.document(img.digest)
	if err != nil {
		return top, nil, err
	}
	blobs := []digest.Digest{img.digest}
	if top.MediaType != imagespec.MediaTypeImageIndex && !strings.HasSuffix(top.MediaType, "manifest.list.v2+json") {
		all, err := a.all(children)
		return top, append(blobs, all...), err
	}
	whole := 0
	for _, child := range children {
		_, parts, err := a.document(child)
		if err != nil {
			continue
		}
		all, err := a.all(parts)
		if err != nil {
			continue
		}
		blobs = append(append(blobs, child), all...)
		whole++
	}
	if whole == 0 {
		return top, nil, fmt.Errorf("no platform of it is whole: %w", errs.NotFound)
	}
	return top, blobs, nil
}

// all returns the blobs if every one is there.
func (a archiver) all(blobs []digest.Digest) ([]digest.Digest, error) {
	for _, blob := range blobs {
		if _, err := a.files.Stat(a.blob(blob)); err != nil {
			return nil, fmt.Errorf("blob %s: %w", blob, err)
		}
	}
	return blobs, nil
}

// document reads a manifest or index: its descriptor and what it names.
func (a archiver) document(d digest.Digest) (imagespec.Descriptor, []digest.Digest, error) {
	desc := imagespec.Descriptor{Digest: d}
	if err := d.Validate(); err != nil {
		return desc, nil, fmt.Errorf("digest %q: %w: %w", d, err, errs.Invalid)
	}
	r, err := a.files.Open(a.blob(d))
	if err != nil {
		return desc, nil, fmt.Errorf("blob %s: %w", d, err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err != nil {
		return desc, nil, fmt.Errorf("blob %s: %w", d, err)
	}
	var document struct {
		MediaType string                 `json:"mediaType"`
		Config    imagespec.Descriptor   `json:"config"`
		Layers    []imagespec.Descriptor `json:"layers"`
		Manifests []imagespec.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return desc, nil, fmt.Errorf("blob %s is not a manifest: %w: %w", d, err, errs.Invalid)
	}
	desc.Size, desc.MediaType = int64(len(data)), document.MediaType
	var children []digest.Digest
	for _, child := range document.Manifests {
		children = append(children, child.Digest)
	}
	if document.Config.Digest != "" {
		children = append(children, document.Config.Digest)
	}
	for _, layer := range document.Layers {
		children = append(children, layer.Digest)
	}
	if desc.MediaType == "" {
		desc.MediaType = imagespec.MediaTypeImageManifest
		if len(document.Manifests) > 0 {
			desc.MediaType = imagespec.MediaTypeImageIndex
		}
	}
	return desc, children, nil
}

// write streams an image as an OCI archive.
func (a archiver) write(w io.Writer, img image) error {
	top, blobs, err := a.plan(img)
	if err != nil {
		return err
	}
	index := imagespec.Index{MediaType: imagespec.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for _, name := range img.names {
		entry := top
		entry.Annotations = map[string]string{"io.containerd.image.name": name, imagespec.AnnotationRefName: name}
		index.Manifests = append(index.Manifests, entry)
	}
	indexText, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("cannot write the index: %w", err)
	}
	t := tar.NewWriter(w)
	for _, small := range []struct {
		name string
		data []byte
	}{
		{imagespec.ImageLayoutFile, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{imagespec.ImageIndexFile, indexText},
	} {
		if err := entry(t, small.name, int64(len(small.data)), bytes.NewReader(small.data)); err != nil {
			return err
		}
	}
	written := map[digest.Digest]bool{}
	for _, blob := range blobs {
		if written[blob] {
			continue
		}
		written[blob] = true
		if err := a.writeBlob(t, blob); err != nil {
			return err
		}
	}
	return t.Close()
}

func (a archiver) writeBlob(t *tar.Writer, blob digest.Digest) error {
	info, err := a.files.Stat(a.blob(blob))
	if err != nil {
		return fmt.Errorf("blob %s: %w", blob, err)
	}
	r, err := a.files.Open(a.blob(blob))
	if err != nil {
		return fmt.Errorf("blob %s: %w", blob, err)
	}
	err = entry(t, path.Join("blobs", blob.Algorithm().String(), blob.Encoded()), info.Size, r)
	return errors.Join(err, r.Close())
}

func entry(t *tar.Writer, name string, size int64, r io.Reader) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg, Format: tar.FormatPAX}); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	if _, err := io.Copy(t, r); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return nil
}

package imagetest

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Archive writes a docker archive of the images, as docker save does: layers
// first, manifest.json last.
func Archive(w io.Writer, images ...Spec) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var entries []entry
	a := newArchive(w)
	for _, spec := range images {
		img, err := Build(spec)
		if err != nil {
			return err
		}
		e := entry{Config: img.Config.Digest.Encoded() + ".json", RepoTags: []string{}}
		if img.Name != "" {
			e.RepoTags = append(e.RepoTags, img.Name)
		}
		for _, layer := range img.Layers {
			name := layer.Digest.Encoded() + ".tar"
			e.Layers = append(e.Layers, name)
			a.add(name, layer.Data)
		}
		a.add(e.Config, img.Config.Data)
		entries = append(entries, e)
	}
	a.addJSON("manifest.json", entries)
	return a.close()
}

// OCIArchive writes an OCI image layout of the images as a tar stream.
func OCIArchive(w io.Writer, images ...Spec) error {
	built := make([]*Image, len(images))
	for i, spec := range images {
		var err error
		if built[i], err = Build(spec); err != nil {
			return err
		}
	}
	return OCIArchiveOf(w, built...)
}

// OCIArchiveOf is OCIArchive for images that are built.
func OCIArchiveOf(w io.Writer, images ...*Image) error {
	index := imagespec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: imagespec.MediaTypeImageIndex,
	}
	a := newArchive(w)
	a.addJSON(imagespec.ImageLayoutFile, imagespec.ImageLayout{Version: imagespec.ImageLayoutVersion})
	for _, img := range images {
		for _, blob := range append([]Blob{img.Manifest, img.Config}, img.Layers...) {
			a.add("blobs/"+blob.Digest.Algorithm().String()+"/"+blob.Digest.Encoded(), blob.Data)
		}
		desc := img.Manifest.Descriptor
		if img.Name != "" {
			desc.Annotations = map[string]string{imagespec.AnnotationRefName: img.Name}
		}
		index.Manifests = append(index.Manifests, desc)
	}
	a.addJSON(imagespec.ImageIndexFile, index)
	return a.close()
}

// archive writes files into a tar stream, each name once, and keeps the first error.
type archive struct {
	w     *tar.Writer
	names map[string]bool
	err   error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: tar.NewWriter(w), names: map[string]bool{}}
}

func (a *archive) add(name string, data []byte) {
	if a.err != nil || a.names[name] {
		return
	}
	a.names[name] = true
	a.err = a.w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = a.w.Write(data)
	}
}

func (a *archive) addJSON(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil && a.err == nil {
		a.err = err
		return
	}
	a.add(name, data)
}

func (a *archive) close() error {
	if a.err != nil {
		return fmt.Errorf("cannot write the archive: %w", a.err)
	}
	return a.w.Close()
}

// Package bill reads an archive that `berth image bundle` has written, and lists what is in it: a bill of materials in the
// form of SPDX 2.3. It runs nothing of the images, and bounds what it reads of them: their content comes from anywhere.
package bill

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
)

const (
	// maxDocument bounds manifests and configurations, maxEntries the files of an archive and maxLayers those of an image.
	maxDocument = 8 << 20
	maxEntries  = 100_000
	maxLayers   = 500
	// maxDepth bounds indexes in indexes.
	maxDepth = 4
)

// Image is an image of an archive.
type Image struct {
	// Names are its full references, sorted. Digest is that of its manifest.
	Names    []string
	Digest   digest.Digest
	Platform imagespec.Platform
	Config   imagespec.Image
	Layers   []imagespec.Descriptor
	// ArtifactType is that of an OCI artifact, which has neither a platform nor packages. Its layers are files.
	ArtifactType string
	// Packages are those that its package databases list. Fault is why they could not be read.
	Packages []Package
	Fault    error
	// System is the distribution, as os-release names it.
	System map[string]string
}

// section is where a file is in the archive.
type section struct{ at, size int64 }

// reader reads an archive.
type reader struct {
	file  *os.File
	files map[string]section
	// layers are those that were looked into.
	layers map[digest.Digest]*layer
}

// Read lists the images of an archive by their manifests. Invalid if it is not an OCI layout in a tar archive.
func Read(file *os.File) ([]Image, error) {
	r := &reader{file: file, files: map[string]section{}, layers: map[digest.Digest]*layer{}}
	if err := r.find(); err != nil {
		return nil, fmt.Errorf("cannot read the archive: %w", err)
	}
	var index imagespec.Index
	if err := r.document(imagespec.ImageIndexFile, &index); err != nil {
		return nil, err
	}
	found := map[digest.Digest]*Image{}
	var order []digest.Digest
	for _, desc := range index.Manifests {
		manifest, dgst, err := r.manifest(desc.Digest, 0)
		if err != nil {
			return nil, err
		}
		img := found[dgst]
		if img == nil {
			if img, err = r.image(manifest, dgst); err != nil {
				return nil, err
			}
			found[dgst] = img
			order = append(order, dgst)
		}
		if name := cmp.Or(desc.Annotations[images.AnnotationImageName], desc.Annotations[imagespec.AnnotationRefName]); name != "" {
			img.Names = append(img.Names, name)
		}
	}
	slices.Sort(order)
	var all []Image
	for _, dgst := range order {
		slices.Sort(found[dgst].Names)
		all = append(all, *found[dgst])
	}
	return all, nil
}

// find notes where each file is.
func (r *reader) find() error {
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	t := tar.NewReader(r.file)
	for {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", err, errs.Invalid)
		}
		if len(r.files) >= maxEntries {
			return fmt.Errorf("it has more than %d files: %w", maxEntries, errs.Invalid)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		at, err := r.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		r.files[path.Clean(header.Name)] = section{at, header.Size}
	}
}

func (r *reader) open(name string) (*io.SectionReader, error) {
	at, ok := r.files[name]
	if !ok {
		return nil, fmt.Errorf("the archive lacks %q: %w", name, errs.Invalid)
	}
	return io.NewSectionReader(r.file, at.at, at.size), nil
}

func (r *reader) document(name string, into any) error {
	from, err := r.open(name)
	if err != nil {
		return err
	}
	if from.Size() > maxDocument {
		return fmt.Errorf("%q has %d bytes, at most %d are read: %w", name, from.Size(), maxDocument, errs.Invalid)
	}
	data, err := io.ReadAll(from)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("cannot read %q: %w: %w", name, err, errs.Invalid)
	}
	return nil
}

func blobName(dgst digest.Digest) (string, error) {
	if err := dgst.Validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w: %w", dgst, err, errs.Invalid)
	}
	return path.Join(imagespec.ImageBlobsDir, dgst.Algorithm().String(), dgst.Encoded()), nil
}

// manifest reads the manifest that a digest leads to. Of an index the archive has one image.
func (r *reader) manifest(dgst digest.Digest, depth int) (*imagespec.Manifest, digest.Digest, error) {
	name, err := blobName(dgst)
	if err != nil {
		return nil, "", err
	}
	var both struct {
		imagespec.Manifest
		Manifests []imagespec.Descriptor `json:"manifests"`
	}
	if err := r.document(name, &both); err != nil {
		return nil, "", err
	}
	if both.Manifests == nil {
		return &both.Manifest, dgst, nil
	}
	for _, below := range both.Manifests {
		name, err := blobName(below.Digest)
		if err != nil {
			return nil, "", err
		}
		if _, ok := r.files[name]; ok && depth < maxDepth {
			return r.manifest(below.Digest, depth+1)
		}
	}
	return nil, "", fmt.Errorf("the archive has nothing of the index %s: %w", dgst, errs.Invalid)
}

func (r *reader) image(manifest *imagespec.Manifest, dgst digest.Digest) (*Image, error) {
	if len(manifest.Layers) > maxLayers {
		return nil, fmt.Errorf("manifest %s has %d layers, at most %d are read: %w", dgst, len(manifest.Layers), maxLayers, errs.Invalid)
	}
	for _, desc := range manifest.Layers {
		if _, err := blobName(desc.Digest); err != nil {
			return nil, err
		}
	}
	img := &Image{Digest: dgst, Layers: manifest.Layers, ArtifactType: tree.ArtifactType(manifest)}
	if img.ArtifactType != "" {
		return img, nil
	}
	name, err := blobName(manifest.Config.Digest)
	if err != nil {
		return nil, err
	}
	if err := r.document(name, &img.Config); err != nil {
		return nil, err
	}
	img.Platform = img.Config.Platform
	files := map[string][]byte{}
	for _, desc := range manifest.Layers {
		found, err := r.layer(desc)
		if err != nil {
			img.Fault = fmt.Errorf("layer %s: %w", desc.Digest, err)
			return img, nil
		}
		found.over(files)
	}
	img.Packages, img.System = packagesOf(files)
	return img, nil
}

package archive

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Saved is an image to write.
type Saved struct {
	// Names of the image. A tag points to the manifest, a name with a digest to the manifest or the index of that digest.
	Names []reference.Named
	// Indexes lead to the manifest. They are written if a name has the digest of one.
	Indexes          []imagespec.Descriptor
	Manifest, Config imagespec.Descriptor
	Layers           []imagespec.Descriptor
	// Platform is that of an image.
	Platform imagespec.Platform
	// ArtifactType is that of an OCI artifact, "" for an image.
	ArtifactType string
}

// Write writes an archive that is both a docker archive and an OCI layout. The same images with the same names give the same
// bytes, whatever their order. A docker archive has no artifacts: they are in the OCI layout alone. from compares what it
// provides with the digests.
func Write(ctx context.Context, from content.Provider, to io.Writer, all []Saved) error {
	w := &writer{
		ctx: ctx, from: from, tar: tar.NewWriter(to), blobs: map[digest.Digest]imagespec.Descriptor{},
		index: map[string]imagespec.Descriptor{}, docker: map[digest.Digest]*dockerEntry{},
	}
	for i := range all {
		w.add(&all[i])
	}
	index := imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex}
	for _, key := range slices.Sorted(maps.Keys(w.index)) {
		index.Manifests = append(index.Manifests, w.index[key])
	}
	docker := []dockerEntry{}
	for _, key := range slices.Sorted(maps.Keys(w.docker)) {
		slices.Sort(w.docker[key].RepoTags)
		docker = append(docker, *w.docker[key])
	}
	w.writeBlobs()
	w.document(imagespec.ImageIndexFile, index)
	w.document(dockerManifest, docker)
	w.document(imagespec.ImageLayoutFile, imagespec.ImageLayout{Version: imagespec.ImageLayoutVersion})
	if w.err != nil {
		return w.err
	}
	return w.tar.Close()
}

// writer keeps the first error.
type writer struct {
	ctx   context.Context //nolint:containedctx // of the one call of Write
	from  content.Provider
	tar   *tar.Writer
	blobs map[digest.Digest]imagespec.Descriptor
	// index has the entries of index.json by name and digest, docker those of manifest.json by the digest of the config.
	index  map[string]imagespec.Descriptor
	docker map[digest.Digest]*dockerEntry
	err    error
}

// add notes the names and the blobs of an image.
func (w *writer) add(s *Saved) {
	for _, blob := range append([]imagespec.Descriptor{s.Manifest, s.Config}, s.Layers...) {
		w.blobs[blob.Digest] = blob
	}
	// The descriptor in the store also names the registry of the pull. An archive does not.
	manifest := imagespec.Descriptor{MediaType: s.Manifest.MediaType, Digest: s.Manifest.Digest, Size: s.Manifest.Size}
	if s.ArtifactType != "" {
		manifest.ArtifactType = s.ArtifactType
	} else {
		manifest.Platform = &s.Platform
		w.addDocker(s)
	}
	if len(s.Names) == 0 {
		w.index[" "+manifest.Digest.String()] = manifest
	}
	for _, name := range s.Names {
		target := manifest
		if by, ok := name.(reference.Digested); ok {
			if at := slices.IndexFunc(s.Indexes, func(d imagespec.Descriptor) bool { return d.Digest == by.Digest() }); at >= 0 {
				for _, blob := range s.Indexes[at:] {
					w.blobs[blob.Digest] = blob
				}
				target = imagespec.Descriptor{MediaType: s.Indexes[at].MediaType, Digest: s.Indexes[at].Digest, Size: s.Indexes[at].Size}
			}
		}
		target.Annotations = annotations(name)
		w.index[name.String()+" "+target.Digest.String()] = target
	}
}

// addDocker notes the entry of an image in manifest.json, which has no names with digests.
func (w *writer) addDocker(s *Saved) {
	entry := w.docker[s.Config.Digest]
	if entry == nil {
		entry = &dockerEntry{Config: blobPath(s.Config.Digest)}
		for _, layer := range s.Layers {
			entry.Layers = append(entry.Layers, blobPath(layer.Digest))
		}
		w.docker[s.Config.Digest] = entry
	}
	for _, name := range s.Names {
		if _, ok := name.(reference.Digested); ok {
			continue
		}
		if tag := reference.FamiliarString(name); !slices.Contains(entry.RepoTags, tag) {
			entry.RepoTags = append(entry.RepoTags, tag)
		}
	}
}

// annotations name an entry, for containerd and docker, and for tools of OCI layouts.
func annotations(name reference.Named) map[string]string {
	short := name.String()
	if tagged, ok := name.(reference.Tagged); ok {
		short = tagged.Tag()
	}
	return map[string]string{images.AnnotationImageName: name.String(), imagespec.AnnotationRefName: short}
}

func blobPath(dgst digest.Digest) string {
	return path.Join(imagespec.ImageBlobsDir, dgst.Algorithm().String(), dgst.Encoded())
}

func (w *writer) writeBlobs() {
	all := make([]imagespec.Descriptor, 0, len(w.blobs))
	dirs := []string{imagespec.ImageBlobsDir + "/"}
	for _, blob := range w.blobs {
		all = append(all, blob)
		if dir := path.Join(imagespec.ImageBlobsDir, blob.Digest.Algorithm().String()) + "/"; !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		w.header(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755})
	}
	slices.SortFunc(all, func(a, b imagespec.Descriptor) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	for _, blob := range all {
		w.blob(blob)
	}
}

func (w *writer) header(header *tar.Header) {
	if w.err == nil {
		w.err = w.tar.WriteHeader(header)
	}
}

func (w *writer) blob(blob imagespec.Descriptor) {
	w.header(&tar.Header{Typeflag: tar.TypeReg, Name: blobPath(blob.Digest), Mode: 0o444, Size: blob.Size})
	if w.err != nil {
		return
	}
	w.err = func() error {
		r, err := w.from.ReaderAt(w.ctx, blob)
		if err != nil {
			return fmt.Errorf("cannot read blob %s: %w", blob.Digest, err)
		}
		defer r.Close()
		if _, err := io.CopyBuffer(onlyWriter{w.tar}, &untilEnd{w.ctx, content.NewReader(r)}, make([]byte, bufferSize)); err != nil {
			return fmt.Errorf("cannot copy blob %s: %w", blob.Digest, err)
		}
		return nil
	}()
}

// untilEnd reads until its context ends.
type untilEnd struct {
	ctx  context.Context //nolint:containedctx // of the one call of Write
	from io.Reader
}

func (u *untilEnd) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.from.Read(p)
}

func (w *writer) document(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o444, Size: int64(len(data))})
	if w.err == nil {
		_, w.err = w.tar.Write(data)
	}
}

package tree

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

const (
	// filepathAnnotation is the name of a file in artifacts of models, by the specification of the CNCF's ModelPack.
	filepathAnnotation = "org.cncf.model.filepath"
	// maxType is the length of the longest artifact type, in bytes.
	maxType = 255
	// maxName and maxDepth bound the name of a file, in bytes and in parts, maxPart one part: a file system takes no
	// more.
	maxName, maxDepth, maxPart = 1024, 32, 255
)

// ArtifactType returns the type of the artifact that a manifest describes, "" for that of a container image. It looks at
// the document alone: what a registry says beside it may change from one pull to the next.
func ArtifactType(m *imagespec.Manifest) string {
	if m.MediaType == images.MediaTypeDockerSchema2Manifest {
		return "" // Docker's format knows no artifacts, and old clients wrote configs of several types
	}
	layers := len(m.Layers) > 0 && !slices.ContainsFunc(m.Layers, func(l imagespec.Descriptor) bool { return !isLayer(l.MediaType) })
	switch m.Config.MediaType {
	case "", imagespec.MediaTypeImageConfig, images.MediaTypeDockerSchema2Config:
		// An image may say what kind of image it is.
		if layers {
			return ""
		}
		return m.ArtifactType
	case imagespec.MediaTypeEmptyJSON:
	default:
		named := slices.ContainsFunc(m.Layers, func(l imagespec.Descriptor) bool { return fileName(l) != "" })
		if m.ArtifactType == "" && layers && !named {
			return "" // an image of a builder that names configs in its own way
		}
	}
	return cmp.Or(m.ArtifactType, m.Config.MediaType)
}

// fileName is the name of the file that a layer of an artifact is, "" if the layer has none.
func fileName(layer imagespec.Descriptor) string {
	if name, ok := layer.Annotations[imagespec.AnnotationTitle]; ok {
		return name
	}
	return layer.Annotations[filepathAnnotation]
}

// readArtifact completes the tree of an artifact. Nobody but the artifact's own programs knows what its config is, so
// that is provided and not read.
func (r Reader) readArtifact(ctx context.Context, name string, t *Tree, kind string, provide Provide) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("artifact %s: %s: %w", name, fmt.Sprintf(format, args...), errs.Invalid)
	}
	if len(kind) > maxType || strings.ContainsFunc(kind, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return invalid("its type %.300q is not a media type", kind)
	}
	if t.Manifest.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("artifact %s: its manifest has a %s digest, and ids of artifacts are made of sha256: %w", name, t.Manifest.Digest.Algorithm(), errs.Unsupported)
	}
	if err := t.Config.Digest.Validate(); err != nil {
		return invalid("its config has the digest %q: %v", t.Config.Digest, err)
	}
	if t.Config.Size <= 0 || t.Config.Size > MaxDocument {
		return invalid("its config claims %d bytes, want 1 to %d", t.Config.Size, MaxDocument)
	}
	if len(t.Layers) > MaxLayers {
		return invalid("it has %d layers, at most %d are taken", len(t.Layers), MaxLayers)
	}
	t.Artifact = &image.Artifact{Type: kind, Files: []image.ArtifactFile{}}
	for i, layer := range t.Layers {
		if err := layer.Digest.Validate(); err != nil || layer.Size < 0 || layer.Size > maxLayer {
			return invalid("layer %d: digest %q, %d bytes", i, layer.Digest, layer.Size)
		}
		file := fileName(layer)
		if file == "" {
			continue // it is part of the artifact, and of no file system
		}
		if problem := nameProblem(file); problem != "" {
			return invalid("layer %d (%s) has the name %.300q, which %s", i, layer.Digest, file, problem)
		}
		t.Artifact.Files = append(t.Artifact.Files, image.ArtifactFile{
			Name: file, Layer: i, Digest: layer.Digest, MediaType: layer.MediaType, Size: layer.Size,
		})
	}
	if problem := clash(t.Artifact.Files); problem != "" {
		return invalid("%s", problem)
	}
	if err := provide(ctx, t.Config); err != nil {
		return fmt.Errorf("artifact %s: its config: %w", name, err)
	}
	return nil
}

// nameProblem says why a file cannot have a name, "" if it can.
func nameProblem(name string) string {
	parts := strings.Split(name, "/")
	switch {
	case len(name) > maxName:
		return fmt.Sprintf("has %d bytes, at most %d are taken", len(name), maxName)
	case path.IsAbs(name):
		return "is absolute, and files are below the directory that a container mounts"
	case slices.Contains(parts, ".."):
		return "leads out of the directory that a container mounts"
	case name == "." || path.Clean(name) != name:
		return fmt.Sprintf("is not a clean path (%.300q is)", path.Clean(name))
	case len(parts) > maxDepth:
		return fmt.Sprintf("has %d parts, at most %d are taken", len(parts), maxDepth)
	case strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return "has control characters"
	case slices.ContainsFunc(parts, func(part string) bool { return len(part) > maxPart }):
		return fmt.Sprintf("has a part of more than %d bytes", maxPart)
	}
	return ""
}

// clash says which layers cannot be files of one directory, "" if all can.
func clash(files []image.ArtifactFile) string {
	names := map[string]int{}
	for _, file := range files {
		if other, ok := names[file.Name]; ok {
			return fmt.Sprintf("layers %d and %d have the same name %.300q", other, file.Layer, file.Name)
		}
		names[file.Name] = file.Layer
	}
	for _, file := range files {
		for dir := path.Dir(file.Name); dir != "."; dir = path.Dir(dir) {
			if other, ok := names[dir]; ok {
				return fmt.Sprintf("layer %d is the file %.300q, and layer %d has a name below it, %.300q", other, dir, file.Layer, file.Name)
			}
		}
	}
	return ""
}

// artifactChain is the name of the snapshot that has the files of an artifact. It differs from all digests of content.
func (t *Tree) artifactChain() string {
	return digest.FromString("files of the artifact " + t.Manifest.Digest.String()).String()
}

// LayersOf are the layers, by number, from which snapshot i of Chains is made: layer i of an image, and those layers of
// an artifact that have names.
func (t *Tree) LayersOf(i int) []int {
	if t.Artifact == nil {
		return []int{i}
	}
	all := make([]int, len(t.Artifact.Files))
	for n, file := range t.Artifact.Files {
		all[n] = file.Layer
	}
	return all
}

// SizeOf is the size of the blobs of LayersOf, in bytes.
func (t *Tree) SizeOf(i int) (size int64) {
	for _, n := range t.LayersOf(i) {
		size += t.Layers[n].Size
	}
	return size
}

// SourceOf names, for people, what snapshot i is made from.
func (t *Tree) SourceOf(i int) string {
	if t.Artifact == nil {
		return fmt.Sprintf("layer %d (%s)", i, t.Layers[i].Digest)
	}
	return fmt.Sprintf("the files of artifact %s", t.Manifest.Digest)
}

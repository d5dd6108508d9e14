package imagetest

import (
	"cmp"
	"encoding/json"

	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ArtifactSpec is an OCI artifact to build.
type ArtifactSpec struct {
	// Type is its artifact type. ConfigType is the media type of its config, the empty one if "".
	Type, ConfigType string
	Files            []ArtifactFile
	// Subject is the manifest that it is about, if any.
	Subject *imagespec.Descriptor
}

// ArtifactFile is a layer of an artifact.
type ArtifactFile struct {
	// Title is its name, "" for none.
	Title   string
	Content string
	// MediaType is "application/octet-stream" if "".
	MediaType string
}

// Artifact makes the blobs of an artifact. Its id is the digest of its manifest.
func Artifact(spec ArtifactSpec) (*Image, error) {
	a := &Image{Config: NewBlob(cmp.Or(spec.ConfigType, imagespec.MediaTypeEmptyJSON), []byte("{}"))}
	m := imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest,
		ArtifactType: spec.Type, Config: a.Config.Descriptor, Layers: []imagespec.Descriptor{}, Subject: spec.Subject,
	}
	for _, file := range spec.Files {
		blob := NewBlob(cmp.Or(file.MediaType, "application/octet-stream"), []byte(file.Content))
		a.Layers = append(a.Layers, blob)
		desc := blob.Descriptor
		if file.Title != "" {
			desc.Annotations = map[string]string{imagespec.AnnotationTitle: file.Title}
		}
		m.Layers = append(m.Layers, desc)
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	a.Manifest = NewBlob(imagespec.MediaTypeImageManifest, data)
	a.Manifest.ArtifactType = cmp.Or(spec.Type, a.Config.MediaType)
	return a, nil
}

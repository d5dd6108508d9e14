package image

import "github.com/opencontainers/go-digest"

// AnnotationArtifactType is the annotation by which lists of images in CRI say that one is an artifact, and of which type.
const AnnotationArtifactType = "run.berth.artifact-type"

// Artifact is what a store knows of an OCI artifact: files under a manifest that is not that of a container image.
// Containers mount its files as a volume.
type Artifact struct {
	// Type is the artifact type of the manifest, or the media type of its config.
	Type string `json:"artifactType"`
	// Files are the layers that have a name, in the order of the manifest.
	Files []ArtifactFile `json:"files"`
}

// ArtifactFile is one file of an artifact.
type ArtifactFile struct {
	// Name is its path below the directory that a container mounts: relative, clean, and different from the names and
	// the directories of all other files.
	Name string `json:"name"`
	// Layer is the number of its layer in the manifest. Digest, MediaType and Size are those of the layer.
	Layer     int           `json:"layer"`
	Digest    digest.Digest `json:"digest"`
	MediaType string        `json:"mediaType"`
	Size      int64         `json:"size"`
}

package tree

import (
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image"
)

func TestEncryptedLayers(t *testing.T) {
	for mediaType, want := range map[string]struct{ layer, encrypted bool }{
		"application/vnd.oci.image.layer.v1.tar":                                 {true, false},
		"application/vnd.oci.image.layer.v1.tar+encrypted":                       {true, true},
		"application/vnd.oci.image.layer.v1.tar+gzip+encrypted":                  {true, true},
		"application/vnd.oci.image.layer.v1.tar+zstd+encrypted":                  {true, true},
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip+encrypted": {true, true},
		"application/vnd.docker.image.rootfs.diff.tar.gzip+encrypted":            {true, true},
		"application/vnd.oci.image.layer.v1.tar+encrypted+gzip":                  {false, false},
		"application/vnd.oci.image.layer.v1.tar+encrypted+encrypted":             {false, true},
		"application/octet-stream+encrypted":                                     {false, true},
	} {
		if got := isLayer(mediaType); got != want.layer {
			t.Errorf("%s is a layer: %v", mediaType, got)
		}
		tree := &Tree{Layers: []imagespec.Descriptor{{MediaType: mediaType}, {MediaType: imagespec.MediaTypeImageLayer}}}
		if got := tree.IsEncrypted(0); got != want.encrypted || tree.IsEncrypted(1) || tree.Encrypted() > 0 != want.encrypted {
			t.Errorf("%s is encrypted: %v, and %d layers are", mediaType, got, tree.Encrypted())
		}
		tree.Artifact = &image.Artifact{}
		if tree.Encrypted() > 0 {
			t.Errorf("%s: a file of an artifact is a layer", mediaType)
		}
	}
}

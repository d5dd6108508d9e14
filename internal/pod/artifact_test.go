package pod_test

import (
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// TestArtifactIsNoImage: no container runs on an artifact.
func TestArtifactIsNoImage(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	b.Images.(*podtest.Images).Image.Artifact = &image.Artifact{Type: "application/vnd.example.model"}
	config := b.ContainerConfig("main", b.Programs.Sleep)
	_, err := b.s.CreateContainer(t.Context(), sandbox, config)
	assertKind(t, err, errs.Invalid, "config.image.image: "+b.ImageName+" is an OCI artifact (type application/vnd.example.model), not an image")
	b.Images.(*podtest.Images).Image.Artifact = nil
	b.clear()
}

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

// TestImageOfAnotherPlatform: a container runs on an image for the platform of its pod, which the pod keeps. The error of another
// one says which is needed, and what to do.
func TestImageOfAnotherPlatform(t *testing.T) {
	b := newBed(t, nil)
	images := b.Images.(*podtest.Images)
	platforms := map[string]string{}
	b.Platforms = func() map[string]string { return platforms }
	b.restart()
	node := b.mustRun(b.SandboxConfig("node"))
	platforms[""] = "wasi/wasm" // a reload
	wasm := b.mustRun(b.SandboxConfig("wasm"))
	delete(platforms, "")
	b.restart()

	b.mustCreate(node, "main", b.Programs.Sleep)
	config := b.ContainerConfig("main", b.Programs.Sleep)
	config.Image.UserSpecifiedImage = "app:1"
	_, err := b.s.CreateContainer(t.Context(), wasm, config)
	assertKind(t, err, errs.Unsupported, "(app:1) is on this node for linux/amd64, and the pod needs it for wasi/wasm", "berth image pull --handler ", "RuntimeClassInImageCriApi")
	images.Image.OS, images.Image.Architecture = "wasi", "wasm"
	b.mustCreate(wasm, "main", b.Programs.Sleep)
	config = b.ContainerConfig("second", b.Programs.Sleep)
	_, err = b.s.CreateContainer(t.Context(), node, config)
	assertKind(t, err, errs.Unsupported, "for wasi/wasm, and the pod needs it for the node's platform, linux/", "berth image pull "+b.ImageName, "RuntimeClass")
	b.clear()
}

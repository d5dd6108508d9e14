package pod_test

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// TestCheckpointsNeedAnEngineThatRestores: an image with a checkpoint is not run as an image, and a path is not looked up as one.
func TestCheckpointsNeedAnEngineThatRestores(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	config := b.ContainerConfig("main", b.Programs.Sleep)
	config.Image = &runtimeapi.ImageSpec{Image: "/var/lib/kubelet/checkpoints/checkpoint.tar"}
	_, err := b.s.CreateContainer(t.Context(), sandbox, config)
	assertKind(t, err, errs.Unsupported, "config.image.image", "/var/lib/kubelet/checkpoints/checkpoint.tar", "its engine restores no checkpoints")
	b.Images.(*podtest.Images).Image.Annotations = map[string]string{"io.kubernetes.cri-o.annotations.checkpoint.name": "main"}
	_, err = b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
	assertKind(t, err, errs.Unsupported, "config.image.image", "the image has a checkpoint in it")
	b.clear()
}

// TestCheckpointNeedsAnEngineThatCan: the fake engine writes no checkpoints.
func TestCheckpointNeedsAnEngineThatCan(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	id := b.mustStart(sandbox, "main", b.Programs.Sleep)
	assertKind(t, b.s.CheckpointContainer(t.Context(), id, "/x/c.tar", 0), errs.Unsupported, "its engine cannot")
	assertKind(t, b.s.CheckpointContainer(t.Context(), "missing", "/x/c.tar", 0), errs.NotFound)
	if _, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("created", b.Programs.Sleep)); err != nil {
		t.Fatal(err)
	}
	b.clear()
}

//go:build integration

package integration

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images: a pulled image is found by its tag, digest and id until it is removed. A missing image is
// not an error.
func images(t *testing.T, b *harness.Berth) {
	img, err := imagetest.Build(imagetest.Spec{User: "1000:2000", Annotations: map[string]string{"org.example.of": "the image"}, Files: []imagetest.File{{Path: "/file", Content: []byte("pulled")}}})
	if err != nil {
		t.Fatal(err)
	}
	registry := &imagetest.Registry{}
	registry.Push("app", "1", img)
	ref := b.Serve(registry) + "/app:1"
	status := func(ref string) *runtimeapi.Image {
		t.Helper()
		answer, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		if err != nil {
			t.Fatalf("status of %s: %v", ref, err)
		}
		return answer.Image
	}
	if got := status(ref); got != nil {
		t.Errorf("before it is pulled: %v", got)
	}
	pulled, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{
		Image:         &runtimeapi.ImageSpec{Image: ref, Annotations: map[string]string{"org.example.of": "a pod"}},
		SandboxConfig: b.Sandbox("puller"),
	})
	if err != nil {
		t.Fatal(err)
	}
	byTag := status(ref)
	id := img.Config.Digest
	if b.ImagesAreManifests() {
		id = img.Manifest.Digest
	}
	if byTag.GetId() != pulled.ImageRef || pulled.ImageRef != id.String() || !slices.Contains(byTag.GetRepoTags(), ref) ||
		byTag.GetUid().GetValue() != 1000 || byTag.GetSize() == 0 {
		t.Errorf("pulled %s, status %v", pulled.ImageRef, byTag)
	}
	if of := byTag.GetSpec().GetAnnotations(); b.Has(harness.ManifestAnnotations) && (len(of) != 1 || of["org.example.of"] != "the image") {
		t.Errorf("its manifest's annotations are %v", of)
	}
	if log := b.LogTail(); !strings.Contains(log, "pod=puller") {
		t.Errorf("the log does not name the pod of the pull:\n%s", log)
	}
	_, err = b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: "kata"}})
	checkRefusal(t, err, codes.InvalidArgument, []string{"image.runtime_handler", "kata", "accepted"})
	byDigest := strings.TrimSuffix(ref, ":1") + "@" + img.Manifest.Digest.String()
	for _, other := range []string{byDigest, pulled.ImageRef} {
		if got := status(other); got.GetId() != pulled.ImageRef || !slices.Contains(got.GetRepoDigests(), byDigest) {
			t.Errorf("status of %s: %v", other, got)
		}
	}
	for range 2 {
		if _, err := b.Images.RemoveImage(b.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: pulled.ImageRef}}); err != nil {
			t.Error(err)
		}
	}
	for _, gone := range []string{ref, byDigest, pulled.ImageRef} {
		if got := status(gone); got != nil {
			t.Errorf("%s is removed, and its status %v", gone, got)
		}
	}
}

// imageFsInfo: images and containers use one filesystem, which exists. What containers write is not among images.
func imageFsInfo(t *testing.T, b *harness.Berth) {
	b.ExecOut(b.RunPod("writes", "sleep 1000").Container, "dd if=/dev/zero of=/file bs=65536 count=64 2>/dev/null")
	answer, err := b.Images.ImageFsInfo(b.Ctx(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(answer.ImageFilesystems) != 1 || len(answer.ContainerFilesystems) != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	fs := answer.ImageFilesystems[0]
	if fs.UsedBytes.GetValue() < 1<<20 || fs.InodesUsed.GetValue() == 0 || fs.Timestamp == 0 {
		t.Errorf("with an image of more than a megabyte: %v", fs)
	}
	const size = 4 << 20
	b.Await("the usage of containers", func() bool {
		if !b.Has(harness.MadeRootfs) {
			return true // a Docker Engine counts once a minute
		}
		after, err := b.Images.ImageFsInfo(b.Ctx(), &runtimeapi.ImageFsInfoRequest{})
		if err != nil || after.ImageFilesystems[0].UsedBytes.GetValue() >= fs.UsedBytes.GetValue()+size {
			t.Fatalf("%v, %v: images take what a container has written", after, err)
		}
		containers := after.ContainerFilesystems[0]
		return containers.UsedBytes.GetValue() >= size && containers.InodesUsed.GetValue() > 0 && containers.FsId.GetMountpoint() == fs.FsId.GetMountpoint()
	})
	if info, err := os.Stat(fs.GetFsId().GetMountpoint()); err != nil || !info.IsDir() {
		t.Errorf("mount point %q: %v", fs.GetFsId().GetMountpoint(), err)
	}
}

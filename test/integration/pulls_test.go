//go:build integration

package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
)

// heldImage is an image of three layers, at a registry that holds requests for the last one.
type heldImage struct {
	imagetest.Registry
	img *imagetest.Image
	ref string
	// asked is closed when the last layer is asked for. It is sent when let is closed.
	asked, let chan struct{}
}

func holdLastLayer(t *testing.T, b *harness.Berth) *heldImage {
	t.Helper()
	var spec imagetest.Spec
	for _, name := range []string{"first", "second", "last"} {
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: name, Content: []byte(strings.Repeat(name, 50_000))}})
	}
	img, err := imagetest.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	h := &heldImage{img: img, asked: make(chan struct{}), let: make(chan struct{})}
	asked := sync.OnceFunc(func() { close(h.asked) })
	h.Intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		user, password, _ := req.BasicAuth()
		if !strings.HasSuffix(req.URL.Path, img.Layers[2].Digest.String()) || user != h.User || password != h.Password {
			return false
		}
		asked()
		select {
		case <-h.let:
			return false
		case <-req.Context().Done():
			return true
		}
	}
	h.Push("app", "1", img)
	h.ref = b.Serve(&h.Registry) + "/app:1"
	return h
}

func (h *heldImage) pull(b *harness.Berth, auth *runtimeapi.AuthConfig) (string, error) {
	answer, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: h.ref}, Auth: auth})
	return answer.GetImageRef(), err
}

// file is where berth keeps a layer.
func (h *heldImage) file(b *harness.Berth, layer imagetest.Blob) string {
	return filepath.Join(b.Root, "images/content/blobs/sha256", layer.Digest.Encoded())
}

// sentOnce asserts that each layer was sent once.
func (h *heldImage) sentOnce(t *testing.T) {
	t.Helper()
	for i, layer := range h.img.Layers {
		if sent := h.Sent(layer.Digest); sent != layer.Size {
			t.Errorf("layer %d of %d bytes: %d bytes were sent", i, layer.Size, sent)
		}
	}
}

// TestPullsOfAPrivateImageAtOnce: pulls with wrong credentials and with none are refused while the one with the right
// credentials runs, and again when the node has the image.
func TestPullsOfAPrivateImageAtOnce(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	h := holdLastLayer(t, b)
	h.User, h.Password = "joe", "right"
	wrong := []*runtimeapi.AuthConfig{{Username: "joe", Password: "wrong"}, nil}
	var good, bad sync.WaitGroup
	ended := make(chan error, 1)
	good.Go(func() {
		id, err := h.pull(b, &runtimeapi.AuthConfig{Username: "joe", Password: "right"})
		if err != nil || id != h.img.ID() {
			t.Errorf("the right credentials: %s, %v", id, err)
		}
		ended <- err
	})
	select {
	case <-h.asked: // and it is not sent before the others are refused
	case err := <-ended:
		t.Fatalf("the pull with the right credentials ends before it asks for the last layer: %v", err)
	case <-b.Ctx().Done():
		t.Fatal("the pull with the right credentials does not get to the last layer")
	}
	for _, auth := range wrong {
		bad.Go(func() {
			_, err := h.pull(b, auth)
			checkRefusal(t, err, codes.PermissionDenied, []string{h.ref})
		})
	}
	bad.Wait()
	close(h.let)
	good.Wait()
	h.sentOnce(t)
	for _, auth := range wrong {
		_, err := h.pull(b, auth)
		checkRefusal(t, err, codes.PermissionDenied, []string{h.ref})
	}
}

// killDuringPull kills the daemon during a pull, which has all layers but the last, and starts it again.
func killDuringPull(t *testing.T, b *harness.Berth) *heldImage {
	t.Helper()
	h := holdLastLayer(t, b)
	broken := make(chan error, 1)
	go func() {
		_, err := h.pull(b, nil)
		broken <- err
	}()
	select {
	case <-h.asked:
	case err := <-broken:
		t.Fatalf("the pull ends before it asks for the last layer: %v", err)
	case <-b.Ctx().Done():
		t.Fatal("the pull does not get to the last layer")
	}
	for _, layer := range h.img.Layers[:2] {
		b.Await("the first layers are in the store", func() bool {
			_, err := os.Stat(h.file(b, layer))
			return err == nil
		})
	}
	b.KillDaemon()
	if err := <-broken; err == nil {
		t.Error("a pull succeeds without a daemon")
	}
	b.StartDaemon()
	close(h.let)
	if out := b.MustCLI("image", "du"); !strings.Contains(out, "unfinished downloads: ") || strings.Contains(out, "unfinished downloads: 0B") {
		t.Errorf("image du shows\n%s", out)
	}
	return h
}

// TestLeftoverOfAKilledPullIsRemoved: by the name of the image, which the node does not have.
func TestLeftoverOfAKilledPullIsRemoved(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	h := killDuringPull(t, b)
	if _, failed, err := b.CLI("image", "rm", h.ref); err == nil || !strings.Contains(failed, "the node does not have image") {
		t.Errorf("image rm: %v\n%s", err, failed)
	}
	if out := b.MustCLI("image", "du"); !strings.Contains(out, "unfinished downloads: 0B") {
		t.Errorf("image du shows\n%s", out)
	}
	for _, layer := range h.img.Layers {
		if _, err := os.Stat(h.file(b, layer)); !os.IsNotExist(err) {
			t.Errorf("a layer is left after the removal: %v", err)
		}
	}
}

// TestPullAfterTheDaemonIsKilled: the pull after a crash of the daemon fetches the layers that were complete from nowhere.
func TestPullAfterTheDaemonIsKilled(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	h := killDuringPull(t, b)
	id, err := h.pull(b, nil)
	if err != nil || id != h.img.ID() {
		t.Errorf("after the start: %s, %v", id, err)
	}
	h.sentOnce(t)
	if out := b.MustCLI("image", "du"); !strings.Contains(out, "unfinished downloads: 0B") {
		t.Errorf("image du shows\n%s", out)
	}
	if _, err := b.Images.RemoveImage(b.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: h.ref}}); err != nil {
		t.Error(err)
	}
	for _, layer := range h.img.Layers {
		if _, err := os.Stat(h.file(b, layer)); !os.IsNotExist(err) {
			t.Errorf("a layer is left after the removal: %v", err)
		}
	}
}

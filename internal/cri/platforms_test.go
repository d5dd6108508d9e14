package cri

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// platformImages has images by "PLATFORM REF".
type platformImages struct {
	fakeImages
	removed string
}

func (p *platformImages) Get(ctx context.Context, ref string) (*image.Image, error) {
	return p.GetFor(ctx, "", ref)
}

func (p *platformImages) GetFor(_ context.Context, platform, ref string) (*image.Image, error) {
	if img := p.images[platform+" "+ref]; img != nil {
		return img, nil
	}
	return nil, fmt.Errorf("image %q: %w", ref, errs.NotFound)
}

func (p *platformImages) Remove(ctx context.Context, ref string) error {
	return p.RemoveFor(ctx, "", ref)
}

func (p *platformImages) RemoveFor(_ context.Context, platform, ref string) error {
	p.removed = platform + " " + ref
	return nil
}

// The handler of a request, or else of the pod, says for which platform an image is wanted.
func TestImagesForThePlatformOfTheHandler(t *testing.T) {
	web := &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u1", Namespace: "default"}
	pods := &fakePods{
		info:      &engine.Info{Handlers: []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "wasm"}, {Name: "plain"}}},
		list:      []*runtimeapi.PodSandbox{{Id: "1", Metadata: web, RuntimeHandler: "wasm"}},
		platforms: map[string]string{"wasm": "wasi/wasm"},
	}
	images := &platformImages{fakeImages: fakeImages{images: map[string]*image.Image{
		" app:1":          {ID: "sha256:1"},
		"wasi/wasm app:1": {ID: "sha256:2", OS: "wasi", Architecture: "wasm", Annotations: map[string]string{image.AnnotationPlatform: "claimed", "a": "b"}},
		"wasi/wasm own:1": {ID: "sha256:2"},
	}}}
	c := runtimeapi.NewImageServiceClient(client(t, pods, images, nil))
	for _, test := range []struct {
		handler string
		pod     *runtimeapi.PodSandboxMetadata
		want    string
	}{{"", nil, ""}, {"", web, "wasi/wasm"}, {"wasm", nil, "wasi/wasm"}, {"plain", web, ""}} {
		req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "app:1", RuntimeHandler: test.handler}}
		if test.pod != nil {
			req.SandboxConfig = &runtimeapi.PodSandboxConfig{Metadata: test.pod}
		}
		if _, err := c.PullImage(t.Context(), req); err != nil || images.target.Platform != test.want {
			t.Errorf("handler %q, pod %v: pulled for %q, %v", test.handler, test.pod, images.target.Platform, err)
		}
	}
	for _, test := range []struct{ image, handler, want string }{
		{"app:1", "", "sha256:1"},
		{"app:1", "plain", "sha256:1"},
		{"app:1", "wasm", "sha256:2"},
		{"own:1", "", ""},
		{"own:1", "wasm", "sha256:2"},
	} {
		spec := &runtimeapi.ImageSpec{Image: test.image, RuntimeHandler: test.handler}
		got, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
		if err != nil || got.GetImage().GetId() != test.want {
			t.Errorf("status of %v: %v, %v", spec, got, err)
		}
		list, err := c.ListImages(t.Context(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: spec}})
		if err != nil || (len(list.GetImages()) == 1) != (test.want != "") || test.want != "" && list.Images[0].Id != test.want {
			t.Errorf("list of %v: %v, %v", spec, list, err)
		}
		if test.image == "app:1" && test.handler == "wasm" {
			if of := got.GetImage().GetSpec().GetAnnotations(); len(of) != 2 || of[image.AnnotationPlatform] != "wasi/wasm" {
				t.Errorf("its annotations are %v", of)
			}
		}
	}
	for handler, want := range map[string]string{"": " app:1", "plain": " app:1", "wasm": "wasi/wasm app:1"} {
		spec := &runtimeapi.ImageSpec{Image: "app:1", RuntimeHandler: handler}
		if _, err := c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: spec}); err != nil || images.removed != want {
			t.Errorf("removed %q for %q, %v", images.removed, handler, err)
		}
	}
	_, err := c.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "app:1", RuntimeHandler: "kata"}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown handler: %v", err)
	}
}

// onePlatform is a store of images for the node alone.
type onePlatform struct{ image.Store }

func TestPullForAPlatformThatTheStoreLacks(t *testing.T) {
	pods := &fakePods{
		info:      &engine.Info{Handlers: []*runtimeapi.RuntimeHandler{{Name: "wasm"}}},
		platforms: map[string]string{"wasm": "wasi/wasm"},
	}
	c := runtimeapi.NewImageServiceClient(client(t, pods, onePlatform{&fakeImages{}}, nil))
	_, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "a", RuntimeHandler: "wasm"}})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/image"
)

// The handler of the request, or else of the pod, says which snapshotter gets an image.
func TestPullsGoIntoTheSnapshotterOfTheHandler(t *testing.T) {
	web, other := &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u1", Namespace: "default"}, &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u2", Namespace: "default"}
	pods := &fakePods{
		info: &engine.Info{Handlers: []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "lazy"}, {Name: "plain"}}},
		list: []*runtimeapi.PodSandbox{
			{Id: "1", Metadata: other, RuntimeHandler: "plain"},
			{Id: "2", Metadata: web, RuntimeHandler: "lazy"},
		},
		snapshotters: map[string]string{"lazy": "stargz", "": "nydus"},
	}
	images := &fakeImages{}
	c := runtimeapi.NewImageServiceClient(client(t, pods, images, nil))
	for _, test := range []struct {
		what, handler string
		pod           *runtimeapi.PodSandboxMetadata
		want          string
	}{
		{"no pod and no handler", "", nil, "nydus"},
		{"a pod with a handler", "", web, "stargz"},
		{"a pod whose handler has none", "", other, ""},
		{"a pod that is gone", "", &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u3"}, "nydus"},
		{"a request with a handler", "lazy", other, "stargz"},
		{"a request whose handler has none", "plain", web, ""},
	} {
		req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "a", RuntimeHandler: test.handler}}
		if test.pod != nil {
			req.SandboxConfig = &runtimeapi.PodSandboxConfig{Metadata: test.pod}
		}
		if _, err := c.PullImage(t.Context(), req); err != nil || images.target.Snapshotter != test.want {
			t.Errorf("%s: pulled into %q, %v, want %q", test.what, images.target.Snapshotter, err, test.want)
		}
	}
	users := &runtimeapi.PodSandboxConfig{Metadata: web, Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}},
	}}}
	for mode, want := range map[runtimeapi.NamespaceMode]string{runtimeapi.NamespaceMode_POD: "", runtimeapi.NamespaceMode_NODE: "stargz"} {
		users.Linux.SecurityContext.NamespaceOptions.UsernsOptions.Mode = mode
		req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "a", RuntimeHandler: "lazy"}, SandboxConfig: users}
		if _, err := c.PullImage(t.Context(), req); err != nil || images.target.Snapshotter != want {
			t.Errorf("a pod with the user namespace of the %s: pulled into %q, %v, want %q", mode, images.target.Snapshotter, err, want)
		}
	}
	users.Linux.SecurityContext.NamespaceOptions.UsernsOptions.Mode = runtimeapi.NamespaceMode_POD
	pods.snapshotters = map[string]string{"lazy": image.ErofsSnapshotter} // which can map ids
	if _, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "a", RuntimeHandler: "lazy"}, SandboxConfig: users}); err != nil || images.target.Snapshotter != image.ErofsSnapshotter {
		t.Errorf("a pod with a user namespace: pulled into %q, %v", images.target.Snapshotter, err)
	}
	pods.snapshotters = nil
	if _, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "a"}}); err != nil || images.target.Snapshotter != "" {
		t.Errorf("without snapshotters: pulled into %q, %v", images.target.Snapshotter, err)
	}
}

// An image is present for a handler where that one has its layers.
func TestImageStatusOfAHandlerWithASnapshotter(t *testing.T) {
	pods := &fakePods{
		info:         &engine.Info{Handlers: []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "lazy"}, {Name: "plain"}}},
		snapshotters: map[string]string{"lazy": "stargz"},
	}
	c := runtimeapi.NewImageServiceClient(client(t, pods, &fakeImages{images: map[string]*image.Image{
		"unpacked": {ID: "sha256:1"},
		"lazy":     {ID: "sha256:2", Snapshotters: []string{"stargz"}, Lazy: true},
		"artifact": {ID: "sha256:3", Artifact: &image.Artifact{}},
	}}, nil))
	for _, test := range []struct {
		image, handler string
		present        bool
	}{
		{"unpacked", "", true},
		{"unpacked", "plain", true},
		{"unpacked", "lazy", false},
		{"lazy", "", true},
		{"lazy", "lazy", true},
		{"lazy", "plain", true},
		{"artifact", "lazy", true},
	} {
		resp, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: test.image, RuntimeHandler: test.handler}})
		if err != nil || (resp.GetImage() != nil) != test.present {
			t.Errorf("image %s for %q: %v, %v, want present %v", test.image, test.handler, resp, err, test.present)
		}
	}
}

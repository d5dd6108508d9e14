//go:build integration

package integration

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// streamed reads a streamed list to its end.
func streamed[Req, Resp, Item any](
	t *testing.T, b *harness.Berth, req Req, open streamMethod[Req, Resp], items func(*Resp) []Item,
) []Item {
	t.Helper()
	stream, err := open(b.Ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	var all []Item
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(items(resp)) == 0 {
			t.Error("a message without items")
		}
		all = append(all, items(resp)...)
	}
}

// TestRPCStreamedLists: each streamed list has the entries of the list with the same name.
func TestRPCStreamedLists(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("one", "sleep 1000")
	b.RunPod("two", "sleep 1000")
	same := func(t *testing.T, want, got any) {
		t.Helper()
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("(-list +stream):\n%s", diff)
		}
	}
	t.Run("StreamPodSandboxes", func(t *testing.T) {
		for _, filter := range []*runtimeapi.PodSandboxFilter{nil, {LabelSelector: map[string]string{"app": "one"}}} {
			list, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{Filter: filter})
			if err != nil {
				t.Fatal(err)
			}
			same(t, list.Items, streamed(t, b, &runtimeapi.StreamPodSandboxesRequest{Filter: filter}, b.Runtime.StreamPodSandboxes,
				(*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes))
		}
	})
	t.Run("StreamContainers", func(t *testing.T) {
		filter := &runtimeapi.ContainerFilter{PodSandboxId: pod.Sandbox}
		list, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{Filter: filter})
		if err != nil {
			t.Fatal(err)
		}
		same(t, list.Containers, streamed(t, b, &runtimeapi.StreamContainersRequest{Filter: filter}, b.Runtime.StreamContainers,
			(*runtimeapi.StreamContainersResponse).GetContainers))
	})
	t.Run("ListImages / StreamImages", func(t *testing.T) {
		list, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		list.Images = slices.DeleteFunc(list.Images, (*runtimeapi.Image).GetPinned) // of the engine's
		if len(list.Images) != 1 || !slices.Contains(list.Images[0].RepoTags, harness.Busybox) || list.Images[0].Size == 0 {
			t.Errorf("images %v", list.Images)
		}
		one, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: "busybox:test"}}})
		if err != nil || len(one.Images) != 1 || one.Images[0].Id != list.Images[0].Id {
			t.Errorf("by a short name: %v, %v", one, err)
		}
		none, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: "absent:1"}}})
		if err != nil || len(none.Images) != 0 {
			t.Errorf("one that is not there: %v, %v", none, err)
		}
		images := streamed(t, b, &runtimeapi.StreamImagesRequest{}, b.Images.StreamImages, (*runtimeapi.StreamImagesResponse).GetImages)
		same(t, list.Images, slices.DeleteFunc(images, (*runtimeapi.Image).GetPinned))
	})
}

// streamMethod is a client's method that opens a stream.
type streamMethod[Req, Resp any] func(ctx context.Context, req Req, opts ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error)

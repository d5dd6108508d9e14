package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
)

// Filters and small requests are checked too. The error names the field.
func TestBadFieldsOfSmallRequests(t *testing.T) {
	noReference := fmt.Errorf("no reference: %w", errs.Invalid)
	conn := client(t, &fakePods{}, &fakeImages{getErr: noReference, pullErr: noReference}, nil)
	r, i := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	containers := &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: 99}}
	sandboxes := &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: -1}}
	bad := &runtimeapi.ImageSpec{Image: "A b"}
	pull := func(auth *runtimeapi.AuthConfig) func(context.Context) error {
		return call(i.PullImage, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "a"}, Auth: auth})
	}
	for name, c := range map[string]struct {
		do    func(context.Context) error
		field string
	}{
		"ListContainers":       {call(r.ListContainers, &runtimeapi.ListContainersRequest{Filter: containers}), "filter.state.state"},
		"ListPodSandbox":       {call(r.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: sandboxes}), "filter.state.state"},
		"StreamContainers":     {first(r.StreamContainers, &runtimeapi.StreamContainersRequest{Filter: containers}), "filter.state.state"},
		"StreamPodSandboxes":   {first(r.StreamPodSandboxes, &runtimeapi.StreamPodSandboxesRequest{Filter: sandboxes}), "filter.state.state"},
		"StopContainer":        {call(r.StopContainer, &runtimeapi.StopContainerRequest{ContainerId: "x", Timeout: -1}), "timeout"},
		"ExecSync":             {call(r.ExecSync, &runtimeapi.ExecSyncRequest{ContainerId: "x", Cmd: []string{"a"}, Timeout: -1}), "timeout"},
		"StartContainer":       {call(r.StartContainer, &runtimeapi.StartContainerRequest{}), "container_id"},
		"StopPodSandbox":       {call(r.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{}), "pod_sandbox_id"},
		"CreateContainer":      {call(r.CreateContainer, &runtimeapi.CreateContainerRequest{PodSandboxId: "x"}), "config"},
		"UpdateContainer":      {call(r.UpdateContainerResources, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: "x"}), "linux"},
		"ImageStatus":          {call(i.ImageStatus, &runtimeapi.ImageStatusRequest{Image: bad}), "image.image"},
		"RemoveImage":          {call(i.RemoveImage, &runtimeapi.RemoveImageRequest{Image: bad}), "image.image"},
		"PullImage":            {call(i.PullImage, &runtimeapi.PullImageRequest{Image: bad}), "image.image"},
		"PullImage, no base64": {pull(&runtimeapi.AuthConfig{Auth: "!!!"}), "auth.auth"},
		"PullImage, no colon":  {pull(&runtimeapi.AuthConfig{Auth: "YWJj"}), "auth.auth"},
		"PullImage, two lines": {pull(&runtimeapi.AuthConfig{RegistryToken: "s3cret\r\nX: y"}), "auth.registry_token"},
		"PullImage, identity":  {pull(&runtimeapi.AuthConfig{IdentityToken: "s3cret\n"}), "auth.identity_token"},
		"PullImage, address":   {pull(&runtimeapi.AuthConfig{ServerAddress: "a\x00"}), "auth.server_address"},
		"ListImages":           {call(i.ListImages, &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: bad}}), "filter.image.image"},
	} {
		err := c.do(t.Context())
		if got := fieldtest.Named(status.Convert(err).Message()); status.Code(err) != codes.InvalidArgument || got != c.field {
			t.Errorf("%s: %v names %q, want %s", name, err, got, c.field)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s tells a secret: %v", name, err)
		}
	}
}

// first returns the first response of a streamed list.
func first[Request, Response any](method func(context.Context, *Request, ...grpc.CallOption) (grpc.ServerStreamingClient[Response], error), req *Request) func(context.Context) error {
	return func(ctx context.Context) error {
		stream, err := method(ctx, req)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
}

// An empty request is the smallest one that a client can send to any call.
func TestEmptyRequestsAreInvalid(t *testing.T) {
	conn := client(t, &fakePods{}, noImages(), nil)
	r, i := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	calls := map[string]func(context.Context) error{
		"RunPodSandbox":      call(r.RunPodSandbox, &runtimeapi.RunPodSandboxRequest{}),
		"StopPodSandbox":     call(r.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{}),
		"RemovePodSandbox":   call(r.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{}),
		"PodSandboxStatus":   call(r.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{}),
		"CreateContainer":    call(r.CreateContainer, &runtimeapi.CreateContainerRequest{PodSandboxId: "x"}),
		"StartContainer":     call(r.StartContainer, &runtimeapi.StartContainerRequest{}),
		"StopContainer":      call(r.StopContainer, &runtimeapi.StopContainerRequest{}),
		"RemoveContainer":    call(r.RemoveContainer, &runtimeapi.RemoveContainerRequest{}),
		"ContainerStatus":    call(r.ContainerStatus, &runtimeapi.ContainerStatusRequest{}),
		"ReopenContainerLog": call(r.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{}),
		"ExecSync":           call(r.ExecSync, &runtimeapi.ExecSyncRequest{ContainerId: "x"}),
		"Exec":               call(r.Exec, &runtimeapi.ExecRequest{}),
		"Attach":             call(r.Attach, &runtimeapi.AttachRequest{}),
		"PortForward":        call(r.PortForward, &runtimeapi.PortForwardRequest{}),
		"ContainerStats":     call(r.ContainerStats, &runtimeapi.ContainerStatsRequest{}),
		"PodSandboxStats":    call(r.PodSandboxStats, &runtimeapi.PodSandboxStatsRequest{}),
		"ImageStatus":        call(i.ImageStatus, &runtimeapi.ImageStatusRequest{}),
		"PullImage":          call(i.PullImage, &runtimeapi.PullImageRequest{}),
		"RemoveImage":        call(i.RemoveImage, &runtimeapi.RemoveImageRequest{}),
		"CheckpointPod":      call(r.CheckpointPod, &runtimeapi.CheckpointPodRequest{PodSandboxId: "x", ContainerIds: []string{"x"}}),
		"RestorePod":         call(r.RestorePod, &runtimeapi.RestorePodRequest{CheckpointPath: "/x", Config: sandboxRequest()}),
	}
	for name, do := range calls {
		if err := do(t.Context()); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestNothingIsUnimplemented calls every method of the API. It fails if a new version of the API adds a method.
func TestNothingIsUnimplemented(t *testing.T) {
	conn := client(t, &fakePods{}, noImages(), nil)
	for _, service := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, method := range service.Methods {
			err := conn.Invoke(t.Context(), "/"+service.ServiceName+"/"+method.MethodName, &emptypb.Empty{}, &emptypb.Empty{})
			if status.Code(err) == codes.Unimplemented {
				t.Errorf("%s: %v", method.MethodName, err)
			}
		}
		for i := range service.Streams {
			stream, err := conn.NewStream(t.Context(), &service.Streams[i], "/"+service.ServiceName+"/"+service.Streams[i].StreamName)
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.CloseSend(), stream.RecvMsg(&emptypb.Empty{}))
			if status.Code(err) == codes.Unimplemented {
				t.Errorf("%s: %v", service.Streams[i].StreamName, err)
			}
		}
	}
}

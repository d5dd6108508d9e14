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

func sandboxConfig() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "u-1"},
		Hostname:     "web",
		LogDirectory: "/var/log/pods/ns_web_u-1",
		DnsConfig:    &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"svc.local"}, Options: []string{"ndots:5"}},
		PortMappings: []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080}, {}},
	}
}

func containerConfig() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
		Image:    &runtimeapi.ImageSpec{Image: "busybox"},
		LogPath:  "app/0.log",
		Envs:     []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b=c\nd")}},
		Mounts:   []*runtimeapi.Mount{{ContainerPath: "data", HostPath: "/srv"}, {ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: "x"}}},
	}
}

func TestGoodConfigsPass(t *testing.T) {
	if err := checkSandboxConfig(sandboxConfig()); err != nil {
		t.Error(err)
	}
	if err := checkContainerConfig(containerConfig()); err != nil {
		t.Error(err)
	}
}

func TestBadSandboxConfigsAreRefusedByField(t *testing.T) {
	for want, change := range map[string]func(*runtimeapi.PodSandboxConfig){
		"sandbox config must include metadata": func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil },
		"config.metadata.name is empty":        func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = "" },
		"config.metadata.namespace":            func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Namespace = "a/../b" },
		"config.metadata.uid":                  func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Uid = "u\n" },
		`config.hostname "a\nb"`:               func(c *runtimeapi.PodSandboxConfig) { c.Hostname = "a\nb" },
		"config.hostname \"" + strings.Repeat("x", 65): func(c *runtimeapi.PodSandboxConfig) {
			c.Hostname = strings.Repeat("x", 65)
		},
		"config.log_directory":                    func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "logs" },
		"config.dns_config.servers":               func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig.Servers = []string{"1.1.1.1\nnameserver 2.2.2.2"} },
		"config.dns_config.searches":              func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig.Searches = []string{"a b"} },
		"config.dns_config.options":               func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig.Options = []string{""} },
		"config.port_mappings[0].container_port":  func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].ContainerPort = 0 },
		"config.port_mappings[0].host_port 70000": func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].HostPort = 70000 },
		"config.port_mappings[1] is missing":      func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[1] = nil },
		"config.port_mappings[0].protocol":        func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].Protocol = 9 },
	} {
		config := sandboxConfig()
		change(config)
		if err := checkSandboxConfig(config); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(fieldtest.Named(err.Error()), "config") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestBadContainerConfigsAreRefusedByField(t *testing.T) {
	for want, change := range map[string]func(*runtimeapi.ContainerConfig){
		"config.metadata":             func(c *runtimeapi.ContainerConfig) { c.Metadata = nil },
		"config.metadata.name":        func(c *runtimeapi.ContainerConfig) { c.Metadata.Name = ".." },
		"config.image.image is empty": func(c *runtimeapi.ContainerConfig) { c.Image = nil },
		"config.log_path":             func(c *runtimeapi.ContainerConfig) { c.LogPath = "../../etc/passwd" },
		`config.log_path "/var`:       func(c *runtimeapi.ContainerConfig) { c.LogPath = "/var/log/x" },
		"config.envs[0].key":          func(c *runtimeapi.ContainerConfig) { c.Envs[0].Key = "A=B" },
		"config.envs[0].value":        func(c *runtimeapi.ContainerConfig) { c.Envs[0].Value = []byte("a\x00b") },
		"Mount.ContainerPath is empty": func(c *runtimeapi.ContainerConfig) {
			c.Mounts[0].ContainerPath = ""
		},
		"Mount.HostPath is empty":       func(c *runtimeapi.ContainerConfig) { c.Mounts[0].HostPath = "" },
		"config.mounts[0].host_path \"": func(c *runtimeapi.ContainerConfig) { c.Mounts[0].HostPath = "srv" },
	} {
		config := containerConfig()
		change(config)
		if err := checkContainerConfig(config); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(fieldtest.Named(err.Error()), "config") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// What lists and small requests have in them is checked as well, and told by its field.
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

// first makes a call of a streamed list for its first answer.
func first[Request, Response any](method func(context.Context, *Request, ...grpc.CallOption) (grpc.ServerStreamingClient[Response], error), req *Request) func(context.Context) error {
	return func(ctx context.Context) error {
		stream, err := method(ctx, req)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
}

// An empty request is the worst that a client can send to any call.
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
	}
	for name, do := range calls {
		if err := do(t.Context()); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestOnlyCheckpointsAreUnimplemented walks every method of the API: one that a new
// version of it brings shows here.
func TestOnlyCheckpointsAreUnimplemented(t *testing.T) {
	conn := client(t, &fakePods{}, noImages(), nil)
	missing := map[string]bool{"CheckpointContainer": true, "CheckpointPod": true, "RestorePod": true}
	for _, service := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, method := range service.Methods {
			err := conn.Invoke(t.Context(), "/"+service.ServiceName+"/"+method.MethodName, &emptypb.Empty{}, &emptypb.Empty{})
			if got := status.Code(err) == codes.Unimplemented; got != missing[method.MethodName] {
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

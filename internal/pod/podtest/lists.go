package podtest

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/pod"
)

// Sandboxes returns the list of sandboxes as a client reads it.
func Sandboxes(ctx context.Context, s *pod.Service, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	items, err := s.ListSandboxes(ctx, filter)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ListPodSandboxResponse{}
	err = proto.Unmarshal(items.Wire(), resp)
	return resp.Items, err
}

// Containers is Sandboxes for containers.
func Containers(ctx context.Context, s *pod.Service, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	items, err := s.ListContainers(ctx, filter)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ListContainersResponse{}
	err = proto.Unmarshal(items.Wire(), resp)
	return resp.Containers, err
}

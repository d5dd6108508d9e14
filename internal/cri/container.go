package cri

import (
	"context"
	"fmt"
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/shape"
	"github.com/berthrun/berth/internal/errs"
)

// StartContainer implements runtimeapi.RuntimeServiceServer.
func (s *Server) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot start container: %w", err)
	}
	if err := s.opts.Lifecycle.StartContainer(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer implements runtimeapi.RuntimeServiceServer.
func (s *Server) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot stop container: %w", err)
	}
	if req.GetTimeout() < 0 {
		return nil, fmt.Errorf("cannot stop container: %w", invalid("timeout: %d is negative", req.GetTimeout()))
	}
	if err := s.opts.Lifecycle.StopContainer(ctx, req.GetContainerId(), req.GetTimeout()); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements runtimeapi.RuntimeServiceServer.
func (s *Server) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot remove container: %w", err)
	}
	if err := s.opts.Lifecycle.RemoveContainer(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// UpdateContainerResources implements runtimeapi.RuntimeServiceServer.
func (s *Server) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot update container: %w", err)
	}
	if err := checkUpdate(req); err != nil {
		return nil, fmt.Errorf("cannot update container: %w", err)
	}
	if err := s.opts.Lifecycle.UpdateContainer(ctx, req.GetContainerId(), req.GetLinux()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// CheckpointContainer implements runtimeapi.RuntimeServiceServer.
func (s *Server) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot checkpoint container: %w", err)
	}
	if err := shape.CheckpointLocation(req.GetLocation()); err != nil {
		return nil, fmt.Errorf("cannot checkpoint container: %w", err)
	}
	if req.GetTimeout() < 0 {
		return nil, fmt.Errorf("cannot checkpoint container: %w", invalid("timeout: %d is negative", req.GetTimeout()))
	}
	if err := s.opts.Lifecycle.CheckpointContainer(ctx, req.GetContainerId(), req.GetLocation(), req.GetTimeout()); err != nil {
		return nil, err
	}
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

// checkUpdate refuses changes that an update cannot make. Annotations are options of an update,
// of which berth knows none; those of the container never change.
func checkUpdate(req *runtimeapi.UpdateContainerResourcesRequest) error {
	switch names := slices.Sorted(maps.Keys(req.GetAnnotations())); {
	case req.GetWindows() != nil:
		return fmt.Errorf("windows: this is Linux: %w", errs.Unsupported)
	case len(names) > 0:
		return fmt.Errorf("annotations[%q]: an update knows no such option: %w", names[0], errs.Unsupported)
	case req.GetLinux() == nil:
		return invalid("linux is missing: there is nothing else to update on Linux")
	}
	return nil
}

// ContainerStatus implements runtimeapi.RuntimeServiceServer.
func (s *Server) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot get the status of a container: %w", err)
	}
	status, info, err := s.opts.View.ContainerStatus(ctx, req.GetContainerId(), req.GetVerbose())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatusResponse{Status: status, Info: info}, nil
}

// ListContainers implements runtimeapi.RuntimeServiceServer.
func (s *Server) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	if err := checkContainerFilter(req.GetFilter()); err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err)
	}
	items, err := s.opts.View.ListContainers(ctx, req.GetFilter())
	if err != nil {
		return nil, err
	}
	return filled(&runtimeapi.ListContainersResponse{}, items.Wire()), nil
}

// ReopenContainerLog implements runtimeapi.RuntimeServiceServer.
func (s *Server) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot reopen the log of a container: %w", err)
	}
	if err := s.opts.Sessions.ReopenContainerLog(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

func checkContainerFilter(filter *runtimeapi.ContainerFilter) error {
	state := filter.GetState().GetState()
	if _, known := runtimeapi.ContainerState_name[int32(state)]; !known {
		return invalid("filter.state.state: unknown state %d", state)
	}
	return nil
}

func checkContainerID(req interface{ GetContainerId() string }) error {
	if req.GetContainerId() == "" {
		return invalid("container_id: ContainerId should not be empty")
	}
	return nil
}

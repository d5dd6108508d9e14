package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/shape"
)

// StopPodSandbox implements runtimeapi.RuntimeServiceServer.
func (s *Server) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot stop sandbox: %w", err)
	}
	if err := s.opts.Lifecycle.StopSandbox(ctx, req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements runtimeapi.RuntimeServiceServer.
func (s *Server) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot remove sandbox: %w", err)
	}
	if err := s.opts.Lifecycle.RemoveSandbox(ctx, req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// UpdatePodSandboxResources implements runtimeapi.RuntimeServiceServer.
func (s *Server) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot update sandbox: %w", err)
	}
	if err := s.opts.Lifecycle.UpdateSandbox(ctx, req.GetPodSandboxId(), req.GetOverhead(), req.GetResources()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// PodSandboxStatus implements runtimeapi.RuntimeServiceServer.
func (s *Server) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot get the status of a sandbox: %w", err)
	}
	return s.opts.View.SandboxStatus(ctx, req.GetPodSandboxId(), req.GetVerbose())
}

// ListPodSandbox implements runtimeapi.RuntimeServiceServer.
func (s *Server) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	if err := checkSandboxFilter(req.GetFilter()); err != nil {
		return nil, fmt.Errorf("cannot list sandboxes: %w", err)
	}
	items, err := s.opts.View.ListSandboxes(ctx, req.GetFilter())
	if err != nil {
		return nil, err
	}
	return filled(&runtimeapi.ListPodSandboxResponse{}, items.Wire()), nil
}

func checkSandboxFilter(filter *runtimeapi.PodSandboxFilter) error {
	state := filter.GetState().GetState()
	if _, known := runtimeapi.PodSandboxState_name[int32(state)]; !known {
		return invalid("filter.state.state: unknown state %d", state)
	}
	return nil
}

func checkSandboxID(req interface{ GetPodSandboxId() string }) error {
	if req.GetPodSandboxId() == "" {
		return invalid("pod_sandbox_id: PodSandboxId should not be empty")
	}
	return nil
}

// CheckpointPod implements runtimeapi.RuntimeServiceServer. berth has no options of checkpoints.
func (s *Server) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot checkpoint sandbox: %w", err)
	}
	if err := shape.CheckpointPod(req); err != nil {
		return nil, fmt.Errorf("cannot checkpoint sandbox: %w", err)
	}
	if err := s.opts.Lifecycle.CheckpointSandbox(ctx, req.GetPodSandboxId(), req.GetOutputPath(), req.GetContainerIds()); err != nil {
		return nil, err
	}
	return &runtimeapi.CheckpointPodResponse{}, nil
}

// RestorePod implements runtimeapi.RuntimeServiceServer. berth has no options of restores.
func (s *Server) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	if err := shape.RestorePod(req); err != nil {
		return nil, fmt.Errorf("cannot restore sandbox: %w", err)
	}
	id, containers, err := s.opts.Lifecycle.RestoreSandbox(ctx, req)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RestorePodResponse{PodSandboxId: id, RestoredContainers: containers}, nil
}

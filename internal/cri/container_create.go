package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/shape"
)

// CreateContainer implements runtimeapi.RuntimeServiceServer. The sandbox is the
// one that was recorded; the request's copy of its configuration is not read.
func (s *Server) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	if err := shape.Container(req.GetConfig()); err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	id, err := s.opts.Lifecycle.CreateContainer(ctx, req.GetPodSandboxId(), req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

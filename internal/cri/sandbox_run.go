package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/shape"
	"github.com/berthrun/berth/internal/errs"
)

// RunPodSandbox implements runtimeapi.RuntimeServiceServer.
func (s *Server) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := shape.Sandbox(req.GetConfig()); err != nil {
		return nil, fmt.Errorf("cannot run sandbox: %w", err)
	}
	id, err := s.opts.Lifecycle.RunSandbox(ctx, req.GetConfig(), req.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// invalid makes an error of kind Invalid; the text names the field.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errs.Invalid)
}

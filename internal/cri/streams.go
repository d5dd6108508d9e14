package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Exec implements runtimeapi.RuntimeServiceServer. It checks now whether
// the container runs, so that the caller gets a code instead of a broken stream.
func (s *Server) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot exec: %w", err)
	}
	if err := checkCommand(req.GetCmd()); err != nil {
		return nil, fmt.Errorf("cannot exec: %w", err)
	}
	id, _, err := s.opts.Sessions.CheckExec(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	url, err := s.opts.Streams.ExecURL(&runtimeapi.ExecRequest{
		ContainerId: id, Cmd: req.GetCmd(), Tty: req.GetTty(),
		Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecResponse{Url: url}, nil
}

// Attach implements runtimeapi.RuntimeServiceServer.
func (s *Server) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if err := checkContainerID(req); err != nil {
		return nil, fmt.Errorf("cannot attach: %w", err)
	}
	id, _, err := s.opts.Sessions.CheckExec(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	url, err := s.opts.Streams.AttachURL(&runtimeapi.AttachRequest{
		ContainerId: id, Tty: req.GetTty(),
		Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.AttachResponse{Url: url}, nil
}

// PortForward implements runtimeapi.RuntimeServiceServer.
func (s *Server) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot forward ports: %w", err)
	}
	id, err := s.opts.Sessions.CheckPortForward(ctx, req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	url, err := s.opts.Streams.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: id, Port: req.GetPort()})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PortForwardResponse{Url: url}, nil
}

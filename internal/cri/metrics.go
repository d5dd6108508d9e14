package cri

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListMetricDescriptors implements runtimeapi.RuntimeServiceServer.
func (s *Server) ListMetricDescriptors(ctx context.Context, _ *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	info, err := s.opts.Node.EngineInfo(ctx)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: s.metrics.Descriptors(info)}, nil
}

// ListPodSandboxMetrics implements runtimeapi.RuntimeServiceServer.
func (s *Server) ListPodSandboxMetrics(ctx context.Context, _ *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	all, err := s.podMetrics(ctx)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: all}, nil
}

// StreamPodSandboxMetrics implements runtimeapi.RuntimeServiceServer.
func (s *Server) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	all, err := s.podMetrics(stream.Context())
	if err != nil {
		return err
	}
	return sendInParts(stream, all, func(part []*runtimeapi.PodSandboxMetrics) *runtimeapi.StreamPodSandboxMetricsResponse {
		return &runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part}
	})
}

func (s *Server) podMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	figures, err := s.opts.View.Figures(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]*runtimeapi.PodSandboxMetrics, 0, len(figures))
	for i := range figures {
		all = append(all, s.metrics.Pod(&figures[i]))
	}
	return all, nil
}

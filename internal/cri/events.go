package cri

import (
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// GetContainerEvents implements runtimeapi.RuntimeServiceServer. A stream begins
// with the events that lead to the current state, and continues with every new event, in the order
// of created_at, which is unique. So a client whose stream broke misses nothing if it opens
// another.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	subscription, err := s.opts.Events.Events()
	if err != nil {
		return err
	}
	defer subscription.Cancel()
	for {
		events, err := subscription.Next(stream.Context())
		if stream.Context().Err() != nil {
			return nil //nolint:nilerr // the client has left
		}
		if err != nil {
			return err
		}
		for _, event := range events {
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

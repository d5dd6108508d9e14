package cri

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/pod/view"
)

// maxStreamed is how many bytes of items one message of a streamed list carries,
// unless a single item is larger: far below any client's limit, and few enough
// messages for a full node.
const maxStreamed = 1 << 20

// sendInParts sends every item once, in messages of at least one and at most
// maxStreamed bytes. The client keeps nothing of a stream that fails.
func sendInParts[Item proto.Message, Response any](
	stream grpc.ServerStreamingServer[Response], items []Item, wrap func([]Item) *Response,
) error {
	for len(items) > 0 {
		count, size := 1, proto.Size(items[0])
		for count < len(items) {
			next := proto.Size(items[count])
			if size+next > maxStreamed {
				break
			}
			count, size = count+1, size+next
		}
		if err := stream.Send(wrap(items[:count])); err != nil {
			return err
		}
		items = items[count:]
	}
	return nil
}

// sendEncoded is sendInParts for items that are encoded.
func sendEncoded[Response any, Message interface {
	*Response
	proto.Message
}](stream grpc.ServerStreamingServer[Response], items view.Items) error {
	for part := range items.Parts(maxStreamed) {
		if err := stream.Send(filled(Message(new(Response)), part)); err != nil {
			return err
		}
	}
	return nil
}

// filled returns an empty response that is sent with fields which are encoded already. The bytes of
// fields that a message does not know are sent as they are, so nothing is encoded again.
func filled[M proto.Message](empty M, fields []byte) M {
	empty.ProtoReflect().SetUnknown(fields)
	return empty
}

// StreamPodSandboxes implements runtimeapi.RuntimeServiceServer.
func (s *Server) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	if err := checkSandboxFilter(req.GetFilter()); err != nil {
		return fmt.Errorf("cannot list sandboxes: %w", err)
	}
	items, err := s.opts.View.ListSandboxes(stream.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return sendEncoded(stream, items)
}

// StreamContainers implements runtimeapi.RuntimeServiceServer.
func (s *Server) StreamContainers(req *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	if err := checkContainerFilter(req.GetFilter()); err != nil {
		return fmt.Errorf("cannot list containers: %w", err)
	}
	items, err := s.opts.View.ListContainers(stream.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return sendEncoded(stream, items)
}

// StreamContainerStats implements runtimeapi.RuntimeServiceServer.
func (s *Server) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	items, err := s.opts.View.ListContainerStats(stream.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return sendInParts(stream, items, func(part []*runtimeapi.ContainerStats) *runtimeapi.StreamContainerStatsResponse {
		return &runtimeapi.StreamContainerStatsResponse{ContainerStats: part}
	})
}

// StreamPodSandboxStats implements runtimeapi.RuntimeServiceServer.
func (s *Server) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	items, err := s.opts.View.ListPodSandboxStats(stream.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return sendInParts(stream, items, func(part []*runtimeapi.PodSandboxStats) *runtimeapi.StreamPodSandboxStatsResponse {
		return &runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: part}
	})
}

// StreamImages implements runtimeapi.ImageServiceServer.
func (s *Server) StreamImages(req *runtimeapi.StreamImagesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	items, err := s.listImages(stream.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return sendInParts(stream, items, func(part []*runtimeapi.Image) *runtimeapi.StreamImagesResponse {
		return &runtimeapi.StreamImagesResponse{Images: part}
	})
}

package berthapi

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/errs"
)

// v1Service is the service of clients that send JSON in google.protobuf.BytesValue.
const v1Service = "berth.v1.Berth"

// refuseV1 registers the calls of version 1. Without it an older client would report that the
// runtime is not berth. The kind is Unsupported, so an older client pulls images with CRI.
func refuseV1(to grpc.ServiceRegistrar) {
	desc := &grpc.ServiceDesc{ServiceName: v1Service, HandlerType: (*any)(nil)}
	for _, method := range []string{"ListJobs", "ListLayers", "TagImage", "PullImage", "ImportImage", "ImportFile", "ExportImage"} {
		// A stream's handler serves unary calls too, and reads no request.
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName: method, ServerStreams: true, ClientStreams: true,
			Handler: func(any, grpc.ServerStream) error {
				return fmt.Errorf("cannot serve %s: this program is older than the daemon: run the berth of the daemon's version: %w",
					method, errs.Unsupported)
			},
		})
	}
	to.RegisterService(desc, nil)
}

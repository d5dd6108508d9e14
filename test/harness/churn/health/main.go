// health is a gRPC server that reports the state in a file: it serves unless
// the file exists. Arguments: its port, the file.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

type server struct {
	grpc_health_v1.UnimplementedHealthServer
	sick string
}

// Check answers a kubelet's probe.
func (s server) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if _, err := os.Stat(s.sick); err == nil {
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}, nil
}

func main() {
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(port, sick string) error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":"+port)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, server{sick: sick})
	return s.Serve(listener)
}

package cri_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/pkg/cri"
	"github.com/berthrun/berth/pkg/kinds"
)

// A program lists the pods of a node.
func Example() {
	conn, err := cri.Dial(context.Background(), cri.DefaultEndpoint)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	pods, err := conn.Runtime.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, pod := range pods.GetItems() {
		fmt.Println(pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName(), pod.GetState())
	}
}

type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "other"}, nil
}

func TestDial(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	if _, err := cri.Dial(t.Context(), "unix://"+socket); !errors.Is(err, kinds.Unavailable) {
		t.Errorf("without a runtime: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, runtime{})
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	conn, err := cri.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	version, err := conn.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err != nil || version.GetRuntimeName() != "other" {
		t.Errorf("%v, %v", version, err)
	}
	if _, err := conn.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{}); !errors.Is(err, kinds.Unsupported) {
		t.Errorf("an error of the runtime: %v, want kind Unsupported", err)
	}
}

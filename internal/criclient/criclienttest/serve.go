// Package criclienttest serves a CRI runtime of a test.
package criclienttest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Serve serves a runtime until the test ends. It returns the path of its socket, whose last element is name.
func Serve(t *testing.T, runtime runtimeapi.RuntimeServiceServer, name string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, name)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, runtime)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return socket
}

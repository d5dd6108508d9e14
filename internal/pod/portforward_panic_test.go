package pod_test

import (
	"net"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// broken is a client's stream that panics.
type broken struct{}

func (broken) Read([]byte) (int, error)    { panic("oh no") }
func (broken) Write(p []byte) (int, error) { return len(p), nil }
func (broken) Close() error                { return nil }

// A client's stream is read in a goroutine of its own. A panic there is an error of that client.
func TestPanicEndsOneForwarding(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := newBed(t, nil)
	config := b.SandboxConfig("web")
	config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	sandbox := b.mustRun(config)
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	if err := b.s.PortForward(t.Context(), sandbox, int32(tcp.Port), broken{}); err == nil || !strings.Contains(err.Error(), "oh no") {
		t.Errorf("error %v does not name the fault", err)
	}
	b.clear()
}

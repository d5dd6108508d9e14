package doctorcmd

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient/criclienttest"
	"github.com/berthrun/berth/internal/errs"
)

// named is a runtime with a name and verbose facts.
type named struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	name string
	info map[string]string
}

func (n *named) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: n.name}, nil
}

func (n *named) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Info: n.info}, nil
}

// serve serves the runtime for the test's time.
func (n *named) serve(t *testing.T) (endpoint string) {
	t.Helper()
	return socketScheme + criclienttest.Serve(t, n, "s")
}

// TestLoadFrom: the daemon at an endpoint says its configuration. What is not a berth has none, and of a berth that does
// not answer only the socket is known.
func TestLoadFrom(t *testing.T) {
	berth := (&named{name: "berth", info: map[string]string{"config": `{"Root":"/r","State":"/s","Network":{"Mode":"builtin"}}`}}).serve(t)
	got, err := LoadFrom(t.Context(), berth)
	if err != nil || got.Daemon.Root != "/r" || got.Daemon.State != "/s" || got.Daemon.Network.Mode != "builtin" || got.File != "the configuration of the berth at "+berth || got.Fault != nil {
		t.Errorf("of a berth: %+v, %v", got, err)
	}
	for name, runtime := range map[string]*named{"containerd, and doctor examines berth": {name: "containerd"}, "does not say its configuration": {name: "berth"}} {
		if _, err := LoadFrom(t.Context(), runtime.serve(t)); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error that says %q, got %v", name, err)
		}
	}
	nobody := filepath.Join(t.TempDir(), "s")
	if got, err := LoadFrom(t.Context(), nobody); err != nil || got.Daemon.SocketPath() != nobody {
		t.Errorf("a socket without a server: %+v, %v", got, err)
	}
	if _, err := LoadFrom(t.Context(), "relative"); !errors.Is(err, errs.Invalid) {
		t.Errorf("an invalid endpoint: %v", err)
	}
}

package health_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/health"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// runtime is a CRI server on which the creation of sandboxes fails, by kind of network.
type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	networkReady, hasImage bool
	fails                  map[runtimeapi.NamespaceMode]bool

	mu    sync.Mutex
	tried []runtimeapi.NamespaceMode
	made  map[string]bool
}

func (r *runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: r.networkReady},
	}}}, nil
}

func (r *runtime) ImageStatus(context.Context, *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if r.hasImage {
		return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "x"}}, nil
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

func (r *runtime) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mode := req.Config.Linux.SecurityContext.NamespaceOptions.Network
	r.tried = append(r.tried, mode)
	r.made[req.Config.Metadata.Uid] = true
	if r.fails[mode] {
		return nil, errors.New("no network of this kind")
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: req.Config.Metadata.Uid}, nil
}

func (r *runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := req.Filter.LabelSelector["berth.run/probe"]
	if !r.made[id] {
		return &runtimeapi.ListPodSandboxResponse{}, nil
	}
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: id}}}, nil
}

func (r *runtime) StopPodSandbox(context.Context, *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (r *runtime) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.made, req.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (r *runtime) serve(t *testing.T) string {
	t.Helper()
	r.made = map[string]bool{}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return "unix://" + path
}

// TestSandboxOfTheGate: the test sandbox uses the pod network if there is one. A test that could
// not run is a warning.
func TestSandboxOfTheGate(t *testing.T) {
	const pod, node = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE
	for _, c := range []struct {
		name    string
		runtime *runtime
		network health.Network
		image   string
		tried   []runtimeapi.NamespaceMode
		warning string
		fails   bool
	}{
		{"pods' network", &runtime{networkReady: true}, health.PodNetwork, "", []runtimeapi.NamespaceMode{pod}, "", false},
		{"pods' network fails", &runtime{networkReady: true, fails: map[runtimeapi.NamespaceMode]bool{pod: true}}, health.PodNetwork, "", []runtimeapi.NamespaceMode{pod}, "", true},
		{"not ready yet", &runtime{}, health.PodNetwork, "", []runtimeapi.NamespaceMode{node}, "the pods' network is not ready", false},
		{"cluster's network", &runtime{networkReady: true}, health.ClusterNetwork, "", []runtimeapi.NamespaceMode{pod}, "", false},
		{"cluster's network fails", &runtime{networkReady: true, fails: map[runtimeapi.NamespaceMode]bool{pod: true}}, health.ClusterNetwork, "", []runtimeapi.NamespaceMode{pod, node}, "and not with the pods'", false},
		{"both fail", &runtime{networkReady: true, fails: map[runtimeapi.NamespaceMode]bool{pod: true, node: true}}, health.ClusterNetwork, "", []runtimeapi.NamespaceMode{pod, node}, "", true},
		{"host's network", &runtime{networkReady: true}, health.HostNetwork, "", []runtimeapi.NamespaceMode{node}, "", false},
		{"image is there", &runtime{networkReady: true, hasImage: true}, health.PodNetwork, "pause:1", []runtimeapi.NamespaceMode{pod}, "", false},
		{"no image", &runtime{networkReady: true}, health.PodNetwork, "pause:1", nil, "image pause:1 is not on the node yet: no sandbox was tried", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var warnings []string
			ctx := provision.WithWarnings(t.Context(), func(w string) { warnings = append(warnings, w) })
			r := c.runtime
			err := health.CRI{Endpoint: r.serve(t), Unit: "rt.service", SandboxImage: c.image, Network: c.network}.Run(ctx, nil)
			if (err != nil) != c.fails || err != nil && !strings.Contains(err.Error(), "journalctl -u rt.service") {
				t.Errorf("error %v", err)
			}
			if !slices.Equal(r.tried, c.tried) {
				t.Errorf("tried %v, want %v", r.tried, c.tried)
			}
			if got := strings.Join(warnings, "\n"); c.warning == "" && got != "" || !strings.Contains(got, c.warning) {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
			if len(r.made) > 0 {
				t.Errorf("sandboxes are left: %v", r.made)
			}
		})
	}
}

// TestUnservedIsToldOnce: a runtime that answers without CRI will not serve it later, so there is
// no retry.
func TestUnservedIsToldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	h := provisiontest.New()
	h.Programs["journalctl"] = func(provision.Command) ([]byte, error) {
		return []byte(`level=warning msg="failed to load plugin io.containerd.grpc.v1.cri" error="no such handler"` + "\n"), nil
	}
	err = health.CRI{Endpoint: "unix://" + path, Unit: "rt.service"}.Run(t.Context(), h)
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "serves no CRI: io.containerd.grpc.v1.cri: no such handler") {
		t.Errorf("error %v", err)
	}
}

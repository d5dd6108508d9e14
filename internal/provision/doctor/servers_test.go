package doctor_test

import (
	"context"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient/criclienttest"
	frame "github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision/doctor"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// server is a runtime that answers what doctor asks.
type server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	name string
	// driver is its cgroup driver, unready a condition that is false.
	driver  runtimeapi.CgroupDriver
	unready string
}

func (s *server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: s.name, RuntimeVersion: "1.2.3"}, nil
}

func (s *server) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	status := &runtimeapi.RuntimeStatus{}
	for _, condition := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		status.Conditions = append(status.Conditions, &runtimeapi.RuntimeCondition{Type: condition, Status: condition != s.unready, Reason: "Because", Message: "of the test"})
	}
	return &runtimeapi.StatusResponse{Status: status}, nil
}

func (s *server) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: s.driver}}, nil
}

// serve serves a runtime on a socket for the test's time, and returns its path, which the machine has, too.
func (s *server) serve(t *testing.T, h *provisiontest.Host) (socket string) {
	t.Helper()
	socket = criclienttest.Serve(t, s, s.name+".sock")
	write(t, h, socket, "")
	return socket
}

// TestPlantedFaultsOfServers: as TestPlantedFaults, on machines where runtimes answer.
func TestPlantedFaultsOfServers(t *testing.T) {
	const shared = `{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"bridge"}]}`
	for _, c := range []struct {
		name string
		// berth and other are the servers; nil for none. kubelet is its configuration, cni the configuration of the network.
		berth, other *server
		kubelet, cni string
		id           string
		level        finding.Level
		// object, evidence and fix are parts. %B and %O are the sockets.
		object, evidence, fix string
	}{
		{"a network that is not ready", &server{name: "berth", unready: runtimeapi.NetworkReady}, nil, "", "", "runtime", finding.Problem, "%B", "berth 1.2.3 says: NetworkReady is false: Because: of the test", "install the cluster's network"},
		{"a runtime that is not ready", &server{name: "berth", unready: runtimeapi.RuntimeReady}, nil, "", "", "runtime", finding.Problem, "%B", "RuntimeReady is false", "see its log"},
		{
			"another cgroup driver than that of the runtime", &server{name: "berth", driver: runtimeapi.CgroupDriver_SYSTEMD}, nil, "containerRuntimeEndpoint: unix://%B\ncgroupDriver: cgroupfs\n", "",
			"kubelet-runtime", finding.Problem, "cgroup driver", "the kubelet's cgroup driver is cgroupfs (/var/lib/kubelet/config.yaml), that of berth 1.2.3 is systemd", "restart both",
		},
		{"a kubelet of another runtime", &server{name: "berth"}, &server{name: "containerd"}, "containerRuntimeEndpoint: unix://%O\n", "", "other-runtimes", finding.Warning, "unix://%O", "berth runs, and the kubelet talks to unix://%O", "containerRuntimeEndpoint: unix://%B"},
		{"a network of two runtimes", &server{name: "berth"}, &server{name: "containerd"}, "", shared, "other-runtimes", finding.Warning, "/etc/cni/net.d/10-x.conflist", "may be in use by containerd 1.2.3 at %O as well", `"disableGC": true`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, b := wellMachine(t), berth()
			b.Socket = c.berth.serve(t, h)
			other := ""
			if c.other != nil {
				other = c.other.serve(t, h)
				write(t, h, "/etc/containerd/config.toml", "[grpc]\naddress = '"+other+"'\n")
			}
			in := strings.NewReplacer("%B", b.Socket, "%O", other)
			if c.kubelet != "" {
				write(t, h, config, in.Replace(c.kubelet))
			}
			if c.cni != "" {
				write(t, h, "/etc/cni/net.d/10-x.conflist", c.cni)
			}
			var all []finding.Finding
			for _, f := range examine(t, h, b, nil) {
				if f.Level == finding.OK {
					continue
				}
				if f.ID == c.id && f.Level == c.level && f.Object == in.Replace(c.object) && strings.Contains(f.Evidence, in.Replace(c.evidence)) && strings.Contains(f.Fix, in.Replace(c.fix)) {
					return
				}
				all = append(all, f.Finding)
			}
			t.Errorf("no finding %s of level %s about %s says %q and %q: %+v", c.id, c.level, in.Replace(c.object), in.Replace(c.evidence), in.Replace(c.fix), all)
		})
	}
}

// TestEveryCheckHasAFault: each check is shown to find something. There are more than 40 faults, with those of leaks and of
// records in internal/leaks.
func TestEveryCheckHasAFault(t *testing.T) {
	planted := map[string]bool{"other-runtimes": true} // TestPlantedFaultsOfServers
	for _, c := range plantedFaults() {
		planted[c.id] = true
	}
	for _, info := range append(frame.Infos(doctor.OfNode(true)), frame.Infos(doctor.OfHost())...) {
		if !planted[info.ID] {
			t.Errorf("no fault is planted for the check %s", info.ID)
		}
	}
	if n := len(plantedFaults()); n < 40 {
		t.Errorf("%d faults are planted", n)
	}
}

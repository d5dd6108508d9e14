package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// TestControlPlaneIsMarkedLast: `kubeadm init` does not wait for the node. A phase that the
// description skips stays skipped.
func TestControlPlaneIsMarkedLast(t *testing.T) {
	for patch, want := range map[string][]string{
		"": {
			"kubeadm init --config=/etc/berth/cluster/kubeadm.yaml --skip-token-print --skip-phases=preflight,mark-control-plane",
			"kubeadm init phase mark-control-plane --config=/etc/berth/cluster/kubeadm.yaml",
		},
		"kubeadmConfigPatches: ['{kind: InitConfiguration, skipPhases: [addon/kube-proxy, mark-control-plane]}']\n": {
			"kubeadm init --config=/etc/berth/cluster/kubeadm.yaml --skip-token-print --skip-phases=addon/kube-proxy,mark-control-plane,mark-control-plane",
		},
	} {
		f := clustertest.New(t)
		c, _ := clusters(f)
		if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, patch)}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, line := range f.Ran {
			if _, command, _ := strings.Cut(line, ": "); strings.HasPrefix(command, "kubeadm init") {
				got = append(got, command)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: ran %q, want %q", patch, got, want)
		}
	}
}

// slowInit is an engine in which `kubeadm init` runs until a node joins, and then returns ends.
type slowInit struct {
	*clustertest.Fake
	joined chan struct{}
	once   sync.Once
	ends   error
}

func (s *slowInit) Exec(ctx context.Context, name string, c provider.Command) error {
	switch line := strings.Join(c.Args, " "); {
	case strings.HasPrefix(line, "kubeadm init --"):
		select {
		case <-s.joined:
		case <-ctx.Done():
			return ctx.Err()
		}
		if s.ends != nil {
			return s.ends
		}
	case strings.HasPrefix(line, "kubeadm join"):
		s.once.Do(func() { close(s.joined) })
		if s.ends != nil {
			<-ctx.Done() // as for an API that never answers
			return ctx.Err()
		}
	}
	return s.Fake.Exec(ctx, name, c)
}

// TestWorkersJoinWhileInitGoesOn: workers join while `kubeadm init` runs. They need only what the
// API returns without credentials, and no add-ons. If init fails then, create returns its error.
func TestWorkersJoinWhileInitGoesOn(t *testing.T) {
	for _, ends := range []error{nil, clustertest.ErrFake} {
		f := clustertest.New(t)
		c, steps := clusters(f)
		c.Provider = &slowInit{Fake: f, joined: make(chan struct{}), ends: ends}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := c.Create(ctx, CreateOptions{Cluster: clustertest.Describe(t, "pools: [{name: worker}]\n")})
		cancel()
		if !errors.Is(err, ends) || ends != nil && (len(f.Nodes) > 0 || !strings.Contains(err.Error(), "dev-control-plane")) {
			t.Errorf("init ends with %v: %v, nodes %v, %q", ends, err, f.Nodes, *steps)
		}
	}
}

// TestInitFailsBeforeItsAPI: create fails in the step of init, before any node joins.
func TestInitFailsBeforeItsAPI(t *testing.T) {
	f := clustertest.New(t)
	f.API.Close()
	f.FailOn = "kubeadm init"
	c, steps := clusters(f)
	_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers)})
	if !errors.Is(err, clustertest.ErrFake) || len(f.Nodes) > 0 || slices.Contains(*steps, "Joining workers") || !slices.Contains(*steps, "Starting the control plane") {
		t.Errorf("%v, nodes %v, %q", err, f.Nodes, *steps)
	}
}

// TestMarkingThatFails: if mark-control-plane fails, create fails before the kubeconfig has the
// cluster.
func TestMarkingThatFails(t *testing.T) {
	f := clustertest.New(t)
	f.FailOn = "kubeadm init phase"
	c, _ := clusters(f)
	_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")})
	if err == nil || !strings.Contains(err.Error(), "last words of kubelet and berth in dev-control-plane") || len(f.Nodes) > 0 {
		t.Errorf("%v, nodes %v", err, f.Nodes)
	}
	if _, err := os.Stat(c.Kubeconfig[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a kubeconfig is left: %v", err)
	}
}

// TestLoopback6: clients can reach the API of an IPv6-only cluster.
func TestLoopback6(t *testing.T) {
	for leads, want := range map[bool]string{true: "::1", false: "127.0.0.1"} {
		f := clustertest.New(t)
		f.FakeFacts.Loopback6 = leads
		c, said := clusters(f)
		described := clustertest.Describe(t, "networking: {ipFamily: ipv6}\n")
		m := c.newBuilder(described)
		if err := m.checkDescription(); err != nil {
			t.Fatal(err)
		}
		if got := plan.Make(m.Cluster, plan.Host{}).Containers[0].Ports[0].Listen; got != want {
			t.Errorf("the API listens on %s, want %s", got, want)
		}
		if warned := len(*said) == 1 && strings.Contains((*said)[0], "127.0.0.1"); warned == leads || described.Networking.APIServerAddress != "::1" {
			t.Errorf("said: %q; the description has %s", *said, described.Networking.APIServerAddress)
		}
	}
}

package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/config"
)

// TestUnreachableHost: ports of the engine's host are out of reach, as for a job in a container that has the engine's
// socket. Every verb goes through the control plane, and create warns.
func TestUnreachableHost(t *testing.T) {
	f := clustertest.New(t)
	f.Unreachable = true
	withRegistry(t, f)
	c, steps := clusters(f)
	c.patience = time.Millisecond
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers+"registry: {enabled: true, port: 0}\n"), Wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"https://127.0.0.1:1", "localhost:1"} {
		if !slices.ContainsFunc(*steps, func(s string) bool {
			return strings.HasPrefix(s, "warning: "+port+" is a port of the host of podman, which this process does not reach") && !strings.Contains(s, "apiServerAddress")
		}) {
			t.Errorf("no warning of %s: %q", port, *steps)
		}
	}
	if err := c.AddNodes(t.Context(), "dev", config.Addition{Count: 1}, ApplyOptions{Wait: time.Minute}); err != nil {
		t.Error(err)
	}
	if err := c.Stop(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil {
		t.Error(err)
	}
}

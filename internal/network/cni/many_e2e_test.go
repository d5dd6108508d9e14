//go:build integration && e2e

package cni_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/require"
)

// TestFiveHundredPods attaches 500 pods, 20 at a time, to the plugin bridge with a range of 509
// addresses, and detaches them in the same way. It does so twice. No two pods have one address, and
// nothing is left.
func TestFiveHundredPods(t *testing.T) {
	l := newLab(t)
	require.Binary(t, real("bridge"))
	l.write("conf/10-many.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "many", "plugins": [
	 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.66.0.0/23"}]]}}]}`, l.path("store")), 0o644)
	n := l.open(l.config())
	pods := make([]*network.Attachment, 500)
	for i := range pods {
		pods[i] = l.pod()
	}
	atATime := func(do func(*network.Attachment) error) {
		t.Helper()
		var g errgroup.Group
		g.SetLimit(20)
		for _, pod := range pods {
			g.Go(func() error { return do(pod) })
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		var mu sync.Mutex
		holders := map[netip.Addr]string{}
		atATime(func(pod *network.Attachment) error {
			result, err := n.Attach(t.Context(), pod)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for _, ip := range result.IPs {
				if other, taken := holders[ip]; taken {
					t.Errorf("%s is given to %s and %s", ip, other, pod.SandboxID)
				}
				holders[ip] = pod.SandboxID
			}
			return nil
		})
		if len(holders) != len(pods) {
			t.Errorf("%d addresses for %d pods", len(holders), len(pods))
		}
		atATime(func(pod *network.Attachment) error { return n.Detach(t.Context(), pod) })
		entries, err := os.ReadDir(l.path("store/many"))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip") {
				t.Errorf("address %s is left in the store", e.Name())
			}
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if links := l.run(l.host, "ip", "-o", "link"); strings.Contains(links, "veth") {
		t.Errorf("links are left:\n%s", links)
	}
}

//go:build integration && e2e

package cni_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/networktest"
	"github.com/berthrun/berth/internal/require"
)

// TestFiveHundredPods: 500 pods, 20 at a time, on the plugin bridge with a range of 509 addresses. Nothing
// is left.
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
	networktest.Many(t, n, pods, 1, func() {
		entries, err := os.ReadDir(l.path("store/many"))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip") {
				t.Errorf("address %s is left in the store", e.Name())
			}
		}
	})
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if links := l.run(l.host, "ip", "-o", "link"); strings.Contains(links, "veth") {
		t.Errorf("links are left:\n%s", links)
	}
}

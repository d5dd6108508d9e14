// Package networktest has tests that each implementation of network.Network passes.
package networktest

import (
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/network"
)

// atATime is how many pods are attached or detached at a time.
const atATime = 20

// Many attaches all pods, some at a time, and detaches them in the same way. It does so twice. No two
// pods have one address, and each has one of each family. detached is called when all are detached.
func Many(t testing.TB, n network.Network, pods []*network.Attachment, families int, detached func()) {
	t.Helper()
	for range 2 {
		var mu sync.Mutex
		holders := map[netip.Addr]string{}
		each(t, pods, func(pod *network.Attachment) error {
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
		if len(holders) != families*len(pods) {
			t.Errorf("%d addresses for %d pods", len(holders), len(pods))
		}
		each(t, pods, func(pod *network.Attachment) error { return n.Detach(t.Context(), pod) })
		detached()
	}
}

func each(t testing.TB, pods []*network.Attachment, do func(*network.Attachment) error) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(atATime)
	for _, pod := range pods {
		g.Go(func() error { return do(pod) })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

//go:build integration && e2e

package builtin_test

import (
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/network"
)

// TestFiveHundredPods attaches 500 pods, 20 at a time, in a subnet with 509 addresses, and detaches
// them in the same way. It does so twice. No two pods have one address, and nothing is left.
func TestFiveHundredPods(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.66.0.0/23"), netip.MustParsePrefix("fd66::/64")}
	n := l.open(cfg)
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
		if len(holders) != 2*len(pods) {
			t.Errorf("%d addresses for %d pods", len(holders), len(pods))
		}
		atATime(func(pod *network.Attachment) error { return n.Detach(t.Context(), pod) })
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	l.wantNothing()
}

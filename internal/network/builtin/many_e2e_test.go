//go:build integration && e2e

package builtin_test

import (
	"net/netip"
	"testing"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/networktest"
)

// TestFiveHundredPods: 500 pods, 20 at a time, in a subnet with 509 addresses. Nothing is left.
func TestFiveHundredPods(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.66.0.0/23"), netip.MustParsePrefix("fd66::/64")}
	n := l.open(cfg)
	pods := make([]*network.Attachment, 500)
	for i := range pods {
		pods[i] = l.pod()
	}
	networktest.Many(t, n, pods, len(cfg.Subnets), func() {}) // Close frees the addresses
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	l.wantNothing()
}

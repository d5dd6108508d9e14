//go:build integration

package builtin_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestRequestedAddress: a pod that starts again gets its requested address at once. No other pod
// gets it.
func TestRequestedAddress(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")}
	n := l.open(cfg)
	want := netip.MustParseAddr("10.77.0.200")
	for range 3 {
		att := l.pod()
		att.Addresses = []netip.Addr{want}
		if res := l.attach(n, att); len(res.IPs) != 1 || res.IPs[0] != want {
			t.Errorf("addresses %v", res.IPs)
		}
		other := l.pod()
		other.Addresses = att.Addresses
		if _, err := n.Attach(t.Context(), other); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), att.SandboxID) {
			t.Errorf("one that another pod has: %v", err)
		}
		if err := n.Detach(t.Context(), att); err != nil {
			t.Fatal(err)
		}
		if err := sysns.RemoveNetNS(att.NetNS); err != nil {
			t.Fatal(err)
		}
	}
	for _, address := range []string{"10.78.0.1", "10.77.0.1", "10.77.0.255", "fd00::1"} {
		att := l.pod()
		att.Addresses = []netip.Addr{netip.MustParseAddr(address)}
		if _, err := n.Attach(t.Context(), att); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	l.wantNothing()
}

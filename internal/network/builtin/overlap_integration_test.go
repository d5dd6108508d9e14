//go:build integration

package builtin_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/builtin"
)

// uplink gives the lab's host a link with an address and a default route.
func (l *lab) uplink() {
	l.t.Helper()
	for _, args := range []string{
		"link add up0 type bridge", "addr add 192.0.2.9/24 dev up0", "addr add 2001:db8::9/64 dev up0 nodad", "link set up0 up",
		"route add default via 192.0.2.1", "route add 10.64.0.0/12 via 192.0.2.3",
	} {
		l.run(l.host, "ip", strings.Fields(args)...)
	}
}

// TestSubnetOfTheHost: the network refuses a subnet that would take an address from the host, or from its gateway, and
// changes nothing. Beside a mere route it works, with a warning.
func TestSubnetOfTheHost(t *testing.T) {
	l := newLab(t)
	l.uplink()
	for subnet, parts := range map[string][]string{
		"192.0.2.0/29":   {"network.subnets", "192.0.2.0/29", "192.0.2.1, the gateway of the host's default route on link up0", "choose a subnet"},
		"192.0.2.8/29":   {"192.0.2.9, an address of the host on link up0"},
		"2001:db8::/112": {"2001:db8::9, an address of the host on link up0"},
	} {
		cfg := l.config()
		cfg.Subnets = []netip.Prefix{netip.MustParsePrefix(subnet)}
		n, err := builtin.New(t.Context(), cfg)
		if err == nil {
			n.Close()
		}
		for _, part := range parts {
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want kind Invalid with %q", subnet, err, part)
			}
		}
	}
	if links := l.run(l.host, "ip", "-o", "link"); strings.Contains(links, "berth") {
		t.Errorf("a refused subnet leaves a bridge:\n%s", links)
	}
	var log bytes.Buffer
	cfg := l.config()
	cfg.Subnets, cfg.Log = []netip.Prefix{netip.MustParsePrefix("10.70.0.0/24")}, slog.New(slog.NewTextHandler(&log, nil))
	n := l.open(cfg)
	defer n.Close()
	if !strings.Contains(log.String(), "the host's route to 10.64.0.0/12 on link up0") {
		t.Errorf("no warning of a route:\n%s", log.String())
	}
}

// TestRunningPodsKeepTheirSubnet: the host got an address of the subnet while pods ran. The next start warns of it, and
// refuses the subnet once no pod is left.
func TestRunningPodsKeepTheirSubnet(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29")}
	n := l.open(cfg)
	att := l.pod()
	l.attach(n, att)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	l.run(l.host, "ip", "link", "add", "up0", "type", "bridge")
	l.run(l.host, "ip", "addr", "add", "192.0.2.6/24", "dev", "up0")
	var log bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	n = l.open(cfg)
	if !strings.Contains(log.String(), "192.0.2.6, an address of the host on link up0") {
		t.Errorf("no warning of an address:\n%s", log.String())
	}
	if err := errors.Join(n.Detach(t.Context(), att), n.Close()); err != nil {
		t.Fatal(err)
	}
	if n, err := builtin.New(t.Context(), cfg); !errors.Is(err, errs.Invalid) {
		t.Errorf("without pods: %v, want kind Invalid", err)
		n.Close()
	}
}

// TestPodCIDROfTheHost: a pod CIDR with the gateway of the host is refused, and the network stays as it was. One with an
// address of a link that a former runtime has left is used, with a warning.
func TestPodCIDROfTheHost(t *testing.T) {
	l := newLab(t)
	l.uplink()
	var log bytes.Buffer
	cfg := l.config()
	cfg.AwaitPodCIDR, cfg.Log = true, slog.New(slog.NewTextHandler(&log, nil))
	n := l.open(cfg)
	defer n.Close()
	if err := n.SetPodCIDR(t.Context(), "192.0.2.0/29"); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("a pod CIDR with the gateway: %v, want kind Invalid", err)
	}
	if err := n.Ready(t.Context()); !errors.Is(err, errs.Unavailable) {
		t.Errorf("after the refusal: %v, want kind Unavailable", err)
	}
	l.run(l.host, "ip", "link", "add", "cni0", "type", "bridge")
	l.run(l.host, "ip", "addr", "add", "10.77.0.1/24", "dev", "cni0")
	if err := errors.Join(n.SetPodCIDR(t.Context(), "10.77.0.0/24"), n.Ready(t.Context())); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "10.77.0.1, an address of the host on link cni0") {
		t.Errorf("no warning of an address:\n%s", log.String())
	}
}

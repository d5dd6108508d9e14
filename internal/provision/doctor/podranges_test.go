package doctor_test

import (
	"net/netip"
	"strings"
	"testing"

	frame "github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/provision/doctor"
)

// TestPodRanges: ranges of pods that take addresses of the host are problems, and those that overlap a route are warnings,
// in each mode of the network.
func TestPodRanges(t *testing.T) {
	host := hostnet.Host{
		Addresses: []hostnet.Address{
			{Addr: netip.MustParseAddr("192.0.2.9"), Bits: 24, Link: "eth0"}, {Addr: netip.MustParseAddr("10.4.0.1"), Bits: 24, Link: "berth0"},
		},
		Routes: []hostnet.Route{
			{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("192.0.2.1"), Link: "eth0"},
			{To: netip.MustParsePrefix("10.4.0.0/16"), Via: netip.MustParseAddr("192.0.2.3"), Link: "eth0"},
		},
	}
	const file = "/etc/cni/net.d/10-x.conflist"
	for _, c := range []struct {
		name, mode string
		subnets    []string
		conf       string
		level      finding.Level
		parts      []string
	}{
		{"no overlap", "cni", nil, `{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.200.0.0/24"}}`, finding.OK, nil},
		{
			"a gateway in a range of CNI", "cni", nil, `{"type": "ptp", "ipam": {"type": "host-local", "subnet": "192.0.2.0/29"}}`, finding.Problem,
			[]string{file, "range 192.0.2.0/29", "192.0.2.1, the gateway of the host's default route on link eth0", "choose another range"},
		},
		{
			"an address in a configured subnet", "builtin",
			[]string{"192.0.2.8/29"},
			"", finding.Problem,
			[]string{"192.0.2.8/29", "192.0.2.9, an address of the host on link eth0", "network.subnets in /etc/berth/berth.toml"},
		},
		{"a route into the bridge's subnet", "builtin", nil, "", finding.Warning, []string{"10.4.0.0/24", "the host's route to 10.4.0.0/16 on link eth0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, b := wellMachine(t), berth()
			b.Network, b.Subnets, b.Bridge = c.mode, c.subnets, "berth0"
			if c.conf != "" {
				write(t, h, file, c.conf)
			}
			facts := doctor.New(t.Context(), h, doctor.Options{Berth: b, HostNet: func() (hostnet.Host, error) { return host, nil }})
			found := frame.Examine(t.Context(), facts, frame.Select(doctor.OfNode(false), []string{"pod-ranges"}))
			if len(found) == 0 || found[0].Level != c.level {
				t.Fatalf("%+v, want the level %s", found, c.level)
			}
			for _, part := range c.parts {
				if text := found[0].Evidence + found[0].Fix; !strings.Contains(text, part) {
					t.Errorf("%s, want %q in it", text, part)
				}
			}
		})
	}
}

package hostnet

import (
	"net/netip"
	"slices"
	"testing"
)

// host has a LAN with a default route, a bridge of pods, a pod's link of the plugin ptp, and a VPN.
func host() Host {
	addr := func(text, link string) Address {
		p := netip.MustParsePrefix(text)
		return Address{Addr: p.Addr(), Bits: p.Bits(), Link: link}
	}
	route := func(to, via, link string) Route {
		r := Route{To: netip.MustParsePrefix(to), Link: link}
		if via != "" {
			r.Via = netip.MustParseAddr(via)
		}
		return r
	}
	return Host{
		Addresses: []Address{
			addr("127.0.0.1/8", "lo"), addr("192.0.2.9/24", "eth0"), addr("10.9.0.1/24", "cni0"), addr("10.8.0.1/32", "veth1"), addr("fe80::1/64", "eth0"),
		},
		Routes: []Route{
			route("0.0.0.0/0", "192.0.2.1", "eth0"), route("192.0.2.0/24", "", "eth0"), route("10.9.0.0/24", "", "cni0"), route("10.8.0.7/32", "", "veth1"),
			route("172.16.0.0/12", "198.51.100.1", "tun0"),
		},
	}
}

func TestOverlaps(t *testing.T) {
	for _, c := range []struct {
		subnet string
		own    Own
		want   []string
	}{
		{"10.200.0.0/16", Own{}, nil},
		{"192.0.2.0/28", Own{}, []string{
			"192.0.2.9, an address of the host on link eth0", "192.0.2.1, the gateway of the host's default route on link eth0",
		}},
		{"192.0.2.0/29", Own{}, []string{"192.0.2.1, the gateway of the host's default route on link eth0", "the host's route to 192.0.2.0/24 on link eth0"}},
		{"192.0.2.64/26", Own{}, []string{"the host's route to 192.0.2.0/24 on link eth0"}},
		{"198.51.100.0/24", Own{}, []string{"198.51.100.1, the gateway of the host's route to 172.16.0.0/12 on link tun0"}},
		{"172.20.0.0/16", Own{}, []string{"the host's route to 172.16.0.0/12 on link tun0"}},
		{"10.9.0.0/24", Own{Links: []string{"cni0"}}, nil},
		{"10.9.0.0/24", Own{}, []string{"10.9.0.1, an address of the host on link cni0"}},
		{"10.8.0.0/24", Own{Gateways: []netip.Addr{netip.MustParseAddr("10.8.0.1")}}, nil},
		{"192.0.2.0/24", Own{First: netip.MustParseAddr("192.0.2.100"), Last: netip.MustParseAddr("192.0.2.200")}, nil},
	} {
		var got []string
		for _, o := range host().Overlaps(netip.MustParsePrefix(c.subnet), c.own) {
			got = append(got, o.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, own %+v: %q, want %q", c.subnet, c.own, got, c.want)
		}
	}
}

// TestRangesOf: what belongs to the network depends on its plugin.
func TestRangesOf(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		overlaps   []int // of each range on host()
	}{
		{"a bridge", `{"plugins": [{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}]}`, []int{0}},
		{"a bridge of another name", `{"plugins": [{"type": "bridge", "bridge": "b", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00::/64"}]]}}]}`, []int{1, 0}},
		{"ptp, one plugin", `{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.8.0.0/24"}}`, []int{0}},
		{"macvlan, beside the gateway and the host", `{"type": "macvlan", "ipam": {"type": "host-local", "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10"}}`, []int{0}},
		{"macvlan with the host's address", `{"type": "macvlan", "ipam": {"type": "host-local", "subnet": "192.0.2.0/24"}}`, []int{1}},
		{"another IPAM plugin", `{"type": "macvlan", "ipam": {"type": "static", "subnet": "192.0.2.0/24"}}`, nil},
		{"no JSON", `{`, nil},
	} {
		var got []int
		for _, r := range RangesOf([]byte(c.conf)) {
			got = append(got, len(host().Overlaps(r.Subnet, r.Own)))
		}
		if !slices.Equal(got, c.overlaps) {
			t.Errorf("%s: overlaps %v, want %v", c.name, got, c.overlaps)
		}
	}
}

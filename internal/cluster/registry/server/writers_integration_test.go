//go:build integration

package server

import (
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// TestGatewayIsTheHost: on a container's network only the gateway of the default route is the host.
func TestGatewayIsTheHost(t *testing.T) {
	require.Root(t)
	runtime.LockOSThread() // never unlocked: thread and namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}))
	for _, name := range []string{"eth0", "peer"} {
		link, err := netlink.LinkByName(name)
		must(err)
		must(netlink.LinkSetUp(link))
		if name != "eth0" {
			continue
		}
		for _, text := range []string{"192.0.2.2/24", "2001:db8::2/64"} {
			address, err := netlink.ParseAddr(text)
			must(err)
			address.Flags = unix.IFA_F_NODAD
			must(netlink.AddrAdd(link, address))
		}
		_, elsewhere, err := net.ParseCIDR("198.51.100.0/24")
		must(err)
		for _, route := range []netlink.Route{
			{Gw: net.ParseIP("192.0.2.1")}, {Gw: net.ParseIP("2001:db8::1")}, {Dst: elsewhere, Gw: net.ParseIP("192.0.2.9")},
		} {
			route.LinkIndex = link.Attrs().Index
			must(netlink.RouteAdd(&route))
		}
	}
	for address, host := range map[string]bool{
		"192.0.2.1": true, "::ffff:192.0.2.1": true, "2001:db8::1": true,
		"192.0.2.2": false, "192.0.2.3": false, "192.0.2.9": false, "198.51.100.1": false, "2001:db8::3": false,
	} {
		if got := fromHost(netip.MustParseAddr(address)); got != host {
			t.Errorf("%s: %v, want %v", address, got, host)
		}
	}
}

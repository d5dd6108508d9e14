// Package hostnet reads the addresses and routes of a host, and finds those that a range for pods overlaps.
//
// It knows no network of pods: its callers say which links and addresses are those of the network itself.
package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysnet"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// RouteProtocol is the protocol of the routes that berth makes, in the kernel's numbers.
const RouteProtocol = 177

// Host is what a host has on its links.
type Host struct {
	Addresses []Address
	Routes    []Route
}

// Address is an address of the host. Bits is the length of its subnet.
type Address struct {
	Addr netip.Addr
	Bits int
	Link string
}

// Route is a route of the host, of any table. Via is invalid for a route without a gateway. The routes that the kernel
// makes for each address in its local table, and those of berth, are left out, and so is all that is link-local in IPv6.
type Route struct {
	To   netip.Prefix
	Via  netip.Addr
	Link string
}

// Read asks the kernel about the network namespace of a handle.
func Read(handle *netlink.Handle) (Host, error) {
	var h Host
	names := linkNames{handle: handle, known: map[int]string{}}
	addrs, err := sysnet.WholeList(func() ([]netlink.Addr, error) { return handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return h, fmt.Errorf("cannot list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		if addr = addr.Unmap(); ok && !linkLocal(addr) {
			bits, _ := a.Mask.Size()
			h.Addresses = append(h.Addresses, Address{Addr: addr, Bits: bits, Link: names.of(a.LinkIndex)})
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := sysnet.WholeList(func() ([]netlink.Route, error) {
			return handle.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return h, fmt.Errorf("cannot list the host's routes: %w", err)
		}
		for _, r := range routes {
			if r.Table != unix.RT_TABLE_LOCAL && r.Protocol != RouteProtocol {
				h.Routes = append(h.Routes, routesOf(r, names)...)
			}
		}
	}
	return h, nil
}

// In is Read for a network namespace: that of the calling thread if netns is empty, or else the one at this path.
func In(netns string) (h Host, err error) {
	read := func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("cannot open a netlink socket of the host: %w", err)
		}
		defer handle.Close()
		h, err = Read(handle)
		return err
	}
	if netns == "" {
		err = read()
	} else {
		err = sysns.InNetNS(netns, read)
	}
	return h, err
}

// linkNames looks names of links up. A host with many pods has many links, most of them without an address of its own.
type linkNames struct {
	handle *netlink.Handle
	known  map[int]string
}

// of is "" for a link that is gone.
func (n linkNames) of(index int) string {
	name, known := n.known[index]
	if !known && index > 0 {
		if link, err := n.handle.LinkByIndex(index); err == nil {
			name = link.Attrs().Name
		}
		n.known[index] = name
	}
	return name
}

// linkLocal reports whether an address is one that each link with IPv6 has.
func linkLocal(addr netip.Addr) bool { return addr.Is6() && addr.IsLinkLocalUnicast() }

// routesOf returns one route for each next hop.
func routesOf(r netlink.Route, names linkNames) []Route {
	to := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if r.Family == netlink.FAMILY_V6 {
		to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != nil {
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		if !ok {
			return nil
		}
		bits, _ := r.Dst.Mask.Size()
		to = netip.PrefixFrom(addr.Unmap(), bits).Masked()
	}
	if to.Addr().IsMulticast() || linkLocal(to.Addr()) {
		return nil
	}
	hops := r.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
	}
	var all []Route
	for _, hop := range hops {
		all = append(all, Route{To: to, Via: gateway(hop.Gw, hop.Via), Link: names.of(hop.LinkIndex)})
	}
	return all
}

// gateway is the zero Addr where a next hop has none.
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && len(gw) == 0 {
		gw = v.Addr
	}
	addr, _ := netip.AddrFromSlice(gw)
	return addr.Unmap()
}

// Has reports whether an address is one of the host's.
func (h Host) Has(addr netip.Addr) bool {
	return slices.ContainsFunc(h.Addresses, func(a Address) bool { return a.Addr == addr })
}

// Overlap is something of a host that is in a range, or that a range is in.
type Overlap struct {
	// Addr is the address of the host, or the gateway of Route; invalid where the range overlaps the destination of
	// Route alone.
	Addr netip.Addr
	// Route is the zero Route for an address of the host.
	Route Route
	Link  string
}

// Severe reports whether pods in the range would take an address that the host needs. A mere route loses traffic of pods,
// or that of the host to the addresses behind it.
func (o Overlap) Severe() bool { return o.Addr.IsValid() }

// IsGateway reports whether Addr is the gateway of a route.
func (o Overlap) IsGateway() bool { return o.Addr.IsValid() && o.Route.To.IsValid() }

// String is a clause for people, such as "192.0.2.1, the gateway of the host's default route (link eth0)".
func (o Overlap) String() string {
	on := ""
	if o.Link != "" {
		on = " on link " + o.Link
	}
	switch {
	case o.IsGateway() && o.Route.To.Bits() == 0:
		return fmt.Sprintf("%s, the gateway of the host's default route%s", o.Addr, on)
	case o.IsGateway():
		return fmt.Sprintf("%s, the gateway of the host's route to %s%s", o.Addr, o.Route.To, on)
	case o.Addr.IsValid():
		return fmt.Sprintf("%s, an address of the host%s", o.Addr, on)
	}
	return fmt.Sprintf("the host's route to %s%s", o.Route.To, on)
}

// Own says what of a host belongs to the network of pods itself.
type Own struct {
	// Links are the names of the network's bridges.
	Links []string
	// Gateways are on the host's ends of pods' links, each with a subnet of its own (plugin ptp). The routes to
	// single pods are the network's then, too.
	Gateways []netip.Addr
	// First and Last are set where pods share a subnet with the host, and only the addresses between are theirs, without
	// Never (plugins such as macvlan). Then routes to the subnet do not count as overlaps.
	First, Last, Never netip.Addr
}

func (own Own) address(a Address) bool {
	return slices.Contains(own.Links, a.Link) || a.Bits == a.Addr.BitLen() && slices.Contains(own.Gateways, a.Addr)
}

// pods reports whether pods may get an address.
func (own Own) pods(subnet netip.Prefix, addr netip.Addr) bool {
	if own.First.IsValid() && (addr.Less(own.First) || own.Last.Less(addr) || addr == own.Never) {
		return false
	}
	return subnet.Contains(addr)
}

// Overlaps returns what a subnet overlaps, the severe ones first. Default routes overlap nothing by their destination.
func (h Host) Overlaps(subnet netip.Prefix, own Own) []Overlap {
	var severe, mere []Overlap
	add := func(list *[]Overlap, o Overlap) {
		if !slices.Contains(*list, o) {
			*list = append(*list, o)
		}
	}
	derived := map[netip.Prefix]bool{}
	for _, a := range h.Addresses {
		if own.address(a) || !own.pods(subnet, a.Addr) {
			continue
		}
		add(&severe, Overlap{Addr: a.Addr, Link: a.Link})
		derived[netip.PrefixFrom(a.Addr, a.Bits).Masked()] = true
	}
	for _, r := range h.Routes {
		if slices.Contains(own.Links, r.Link) {
			continue
		}
		if r.Via.IsValid() && own.pods(subnet, r.Via) {
			add(&severe, Overlap{Addr: r.Via, Route: r, Link: r.Link})
			continue
		}
		ofPod := len(own.Gateways) > 0 && r.To.IsSingleIP() && !r.Via.IsValid()
		// The subnet of an address that is reported already needs no second word.
		if r.To.Bits() == 0 || ofPod || own.First.IsValid() || derived[r.To] || !r.To.Overlaps(subnet) {
			continue
		}
		add(&mere, Overlap{Route: Route{To: r.To, Link: r.Link}, Link: r.Link})
	}
	return append(severe, mere...)
}

package noderoutes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/sys/sysnet"
)

// protocol is the number of berth's routes in the kernel's tables.
const protocol = hostnet.RouteProtocol

// otherBerth describes a route of this protocol without a record.
const otherBerth = "another berth's, of protocol 177"

// kernel is the main table of a network namespace.
type kernel struct {
	handle *netlink.Handle
	// routes are those with the metric that the kernel gives by default, by subnet. The first of a subnet is in force.
	routes map[netip.Prefix][]netlink.Route
	// own are the addresses of the host.
	own map[netip.Addr]bool
}

// readKernel reads the routes and the addresses of the handle's namespace.
func readKernel(handle *netlink.Handle) (*kernel, error) {
	k := &kernel{handle: handle, routes: map[netip.Prefix][]netlink.Route{}, own: map[netip.Addr]bool{}}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := sysnet.WholeList(func() ([]netlink.Route, error) {
			return handle.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("cannot list the host's routes: %w", err)
		}
		for _, r := range routes {
			if to, ok := prefixOf(r.Dst); ok && r.Priority == defaultMetric(to) {
				k.routes[to] = append(k.routes[to], r)
			}
		}
	}
	addrs, err := sysnet.WholeList(func() ([]netlink.Addr, error) { return handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("cannot list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			k.own[addr.Unmap()] = true
		}
	}
	return k, nil
}

// Compare returns for each line whether the kernel has its route, for people: "yes", or why not. The routes are those of the
// handle's namespace.
func Compare(handle *netlink.Handle, lines []Line) ([]string, error) {
	k, err := readKernel(handle)
	if err != nil {
		return nil, err
	}
	var states []string
	for _, l := range lines {
		there, err := k.has(l.Route)
		if !there && err == nil && l.Link != "" {
			_, err = k.link(l.Link)
		}
		by, foreign := k.foreign(l.To, true)
		switch {
		case there:
			states = append(states, "yes")
		case k.own[l.Via]:
			states = append(states, "no: the gateway is this node")
		case err != nil:
			states = append(states, "no: "+errs.Message(err))
		case foreign:
			states = append(states, "no: another route to the subnet is there ("+by+")")
		default:
			states = append(states, "no: a berth that follows the file makes it within a second, or has the reason in routesFault of berth info")
		}
	}
	return states, nil
}

// defaultMetric is the metric of a route that was made without one.
func defaultMetric(to netip.Prefix) int {
	if to.Addr().Is4() {
		return 0
	}
	return 1024 // IP6_RT_PRIO_USER
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}

// has reports whether the kernel has a route, whoever made it.
func (k *kernel) has(r Route) (bool, error) {
	all := k.routes[r.To]
	if len(all) == 0 {
		return false, nil
	}
	there := all[0]
	if len(there.MultiPath) > 0 || there.Type != unix.RTN_UNICAST {
		return false, nil
	}
	if via, _ := netip.AddrFromSlice(there.Gw); via.Unmap() != r.Via {
		return false, nil
	}
	if r.Link == "" {
		return true, nil
	}
	link, err := k.link(r.Link)
	return err == nil && link == there.LinkIndex, err
}

// link returns the index of a link.
func (k *kernel) link(name string) (int, error) {
	link, err := k.handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return 0, fmt.Errorf("there is no link %s: %w", name, errs.Unavailable)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot look up link %s: %w", name, err)
	}
	return link.Attrs().Index, nil
}

// foreign describes a route to a subnet that is not this berth's, and reports whether there is one. A route of
// berth's protocol is this berth's if it has a record.
func (k *kernel) foreign(to netip.Prefix, recorded bool) (by string, found bool) {
	for _, r := range k.routes[to] {
		switch {
		case r.Protocol != protocol:
			return "protocol " + r.Protocol.String(), true
		case !recorded:
			return otherBerth, true
		}
	}
	return "", false
}

// set makes a route, or replaces berth's own to the same subnet. Foreign routes stay, and are an error of kind Exists.
func (k *kernel) set(r Route) error {
	route := &netlink.Route{
		Dst: ipNet(r.To), Gw: r.Via.AsSlice(), Protocol: protocol, Table: unix.RT_TABLE_MAIN,
	}
	if r.Link != "" {
		index, err := k.link(r.Link)
		if err != nil {
			return err
		}
		route.LinkIndex = index
	}
	change := k.handle.RouteAdd
	if len(k.routes[r.To]) > 0 {
		change = k.handle.RouteReplace
	}
	err := change(route)
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("another program has just made a route to %s: %w", r.To, errs.Exists)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("no link of this host leads to the gateway %s (%w): %w", r.Via, err, errs.Unavailable)
	case err != nil:
		return fmt.Errorf("the kernel refuses a route to %s via %s: %w", r.To, r.Via, err)
	}
	return nil
}

// remove removes berth's own route to a subnet. Nil when there is none.
func (k *kernel) remove(to netip.Prefix) error {
	for _, there := range k.routes[to] {
		if there.Protocol != protocol {
			continue
		}
		if err := k.handle.RouteDel(&there); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cannot remove the route to %s: %w", to, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

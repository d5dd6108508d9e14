package podlink

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
)

// settleTimeout bounds how long IPv6 addresses may be tentative.
const settleTimeout = 5 * time.Second

// Configure gives the pod's link the addresses and routes of a result, and brings it up. The thread is in the pod's
// network namespace. Order and errors are those of the reference, which opens a socket for each request.
func (p *Pair) Configure(result *types100.Result) error {
	name := p.Pod.Attrs().Name
	if len(result.Interfaces) == 0 {
		return errors.New("no interfaces to configure")
	}
	var gateways gatewayOf
	withIPv6 := false
	for _, address := range result.IPs {
		if address.Interface == nil {
			continue
		}
		if i := *address.Interface; i < 0 || i >= len(result.Interfaces) || result.Interfaces[i].Name != name {
			return fmt.Errorf("failed to add IP addr %v to %q: invalid interface index", address, name)
		}
		if !withIPv6 && address.Address.IP.To4() == nil {
			withIPv6 = true
			if err := enableIPv6(name); err != nil {
				return err
			}
		}
		if err := p.links.AddrAdd(p.Pod, &netlink.Addr{IPNet: &address.Address}); err != nil {
			return fmt.Errorf("failed to add IP addr %v to %q: %w", address, name, err)
		}
		gateways.add(address.Gateway)
	}
	if err := p.links.LinkSetUp(p.Pod); err != nil {
		return fmt.Errorf("failed to set %q UP: %w", name, err)
	}
	if gateways.v6 != nil {
		if err := ip.SettleAddresses(name, settleTimeout); err != nil {
			return fmt.Errorf("failed to settle addresses for %q: %w", name, err)
		}
	}
	for _, r := range result.Routes {
		if err := p.addRoute(r, gateways); err != nil {
			return err
		}
	}
	return nil
}

// gatewayOf are the first gateways of each family. One that is missing counts as IPv6, and is none.
type gatewayOf struct{ v4, v6 net.IP }

func (g *gatewayOf) add(gateway net.IP) {
	first := &g.v6
	if gateway.To4() != nil {
		first = &g.v4
	}
	if *first == nil {
		*first = gateway
	}
}

// addRoute adds a route, by default through the gateway of its family.
func (p *Pair) addRoute(r *types.Route, gateways gatewayOf) error {
	gateway := r.GW
	if gateway == nil && r.Dst.IP.To4() != nil {
		gateway = gateways.v4
	} else if gateway == nil {
		gateway = gateways.v6
	}
	route := netlink.Route{Dst: &r.Dst, LinkIndex: p.Pod.Attrs().Index, Gw: gateway, Priority: r.Priority}
	if r.Table != nil {
		route.Table = *r.Table
	}
	if r.Scope != nil {
		route.Scope = netlink.Scope(*r.Scope)
	}
	if err := p.links.RouteAddEcmp(&route); err != nil {
		return fmt.Errorf("failed to add route '%v via %v dev %v metric %d (Scope: %v, Table: %d)': %w",
			r.Dst, gateway, p.Pod.Attrs().Name, r.Priority, route.Scope, route.Table, err)
	}
	return nil
}

// enableIPv6 has the pod's loopback and a link of it take IPv6 addresses, and the link keep them while it is down.
func enableIPv6(link string) error {
	for _, name := range []string{"lo", link} {
		off := fmt.Sprintf("net/ipv6/conf/%s/disable_ipv6", name)
		value, err := sysctl.Sysctl(off)
		if err != nil {
			fmt.Fprintf(os.Stderr, "ipam_linux: failed to read sysctl %q: %v\n", off, err)
			continue
		}
		if value == "0" {
			continue
		}
		if _, err := sysctl.Sysctl(off, "0"); err != nil {
			return fmt.Errorf("failed to enable IPv6 for interface %q (%s=%s): %w", name, off, value, err)
		}
	}
	if _, err := sysctl.Sysctl(fmt.Sprintf("net/ipv6/conf/%s/keep_addr_on_down", link), "1"); err != nil {
		return fmt.Errorf("failed to enable keep_addr_on_down for interface %q: %w", link, err)
	}
	return nil
}

package bridge

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/podlink"
)

// ensureBridge makes the bridge unless it exists, and brings it up.
func ensureBridge(c *plugin.Call, n *conf) (*netlink.Bridge, error) {
	c.Stage("bridge")
	// With most pods it is there, and needs no change.
	if br, err := bridgeByName(c, n.Bridge); err == nil && br.Flags&net.FlagUp != 0 && !n.PromiscMode {
		ignoreRouters(n.Bridge)
		return br, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = n.Bridge, n.MTU
	made := &netlink.Bridge{LinkAttrs: attrs}
	if n.Vlan != 0 || n.VlanTrunk != nil {
		filtering := true
		made.VlanFiltering = &filtering
	}
	if err := c.Links().LinkAdd(made); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("could not add %q: %w", n.Bridge, err)
	}
	if n.PromiscMode {
		if err := c.Links().SetPromiscOn(made); err != nil {
			return nil, fmt.Errorf("could not set promiscuous mode on %q: %w", n.Bridge, err)
		}
	}
	br, err := bridgeByName(c, n.Bridge)
	if err != nil {
		return nil, err
	}
	ignoreRouters(n.Bridge)
	return br, c.Links().LinkSetUp(br)
}

// ignoreRouters has a link of the host ignore the advertisements of IPv6 routers. A host without IPv6 has no such sysctl.
func ignoreRouters(link string) {
	_ = plugin.WriteSysctl(fmt.Sprintf("net/ipv6/conf/%s/accept_ra", link), "0")
}

func bridgeByName(c *plugin.Call, name string) (*netlink.Bridge, error) {
	link, err := c.Links().LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("could not lookup %q: %w", name, err)
	}
	br, ok := link.(*netlink.Bridge)
	if !ok {
		return nil, fmt.Errorf("%q already exists but is not a bridge", name)
	}
	return br, nil
}

// port is a port of the bridge.
type port struct {
	name, mac         string // of the other end
	mtu               int
	hairpin, isolated bool
	vlan              int
	trunk             []int
	keepDefaultVlan   bool
}

// newPort makes a veth pair and has the bridge take the host's end. The caller closes the pair.
func newPort(c *plugin.Call, pod ns.NetNS, br *netlink.Bridge, p port) (_ *podlink.Pair, err error) {
	pair, err := podlink.NewPair(c, pod, p.name, p.mtu, p.mac)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pair.Close()
		}
	}()
	c.Stage("port of the bridge")
	name := pair.Host.Attrs().Name
	if err := c.Links().LinkSetMaster(pair.Host, br); err != nil {
		return nil, fmt.Errorf("failed to connect %q to bridge %v: %w", name, br.Name, err)
	}
	// A new port has neither.
	if p.hairpin {
		if err := c.Links().LinkSetHairpin(pair.Host, true); err != nil {
			return nil, fmt.Errorf("failed to setup hairpin mode for %v: %w", name, err)
		}
	}
	if p.isolated {
		if err := c.Links().LinkSetIsolated(pair.Host, true); err != nil {
			return nil, fmt.Errorf("failed to set isolated on for %v: %w", name, err)
		}
	}
	if err := setVlans(pair.Host, p); err != nil {
		return nil, err
	}
	return pair, nil
}

// setVlans gives a port its VLANs.
func setVlans(link netlink.Link, p port) error {
	name := link.Attrs().Name
	if (p.vlan != 0 || len(p.trunk) > 0) && !p.keepDefaultVlan {
		if err := removeVlans(link); err != nil {
			return fmt.Errorf("failed to remove default vlan on interface %q: %w", name, err)
		}
	}
	if p.vlan != 0 {
		if err := netlink.BridgeVlanAdd(link, uint16(p.vlan), true, true, false, true); err != nil {
			return fmt.Errorf("failed to setup vlan tag on interface %q: %w", name, err)
		}
	}
	for _, id := range p.trunk {
		if err := netlink.BridgeVlanAdd(link, uint16(id), false, false, false, true); err != nil {
			return fmt.Errorf("failed to setup vlan tag on interface %q: %w", name, err)
		}
	}
	// Untagged frames of a trunk without a VLAN of its own are in VLAN 1.
	if p.vlan == 0 && len(p.trunk) > 0 {
		if err := netlink.BridgeVlanAdd(link, 1, true, true, false, true); err != nil {
			return fmt.Errorf("failed to setup default native vlan tag on interface %q: %w", name, err)
		}
	}
	return nil
}

// removeVlans removes the VLANs that a new port is in.
func removeVlans(link netlink.Link) error {
	all, err := netlinksafe.BridgeVlanList()
	if err != nil {
		return err
	}
	for _, v := range all[int32(link.Attrs().Index)] {
		if err := netlink.BridgeVlanDel(link, v.Vid, false, false, false, true); err != nil {
			return err
		}
	}
	return nil
}

// gateway is an address that the bridge shall have.
type gateway struct {
	family  int
	address net.IPNet
}

// gateways completes the result with the pod's interface, gateways and default routes, and returns the addresses
// of the bridge, IPv4 first.
func (n *conf) gateways(result *types100.Result) ([]gateway, error) {
	var v4, v6 []gateway
	routed := map[int]bool{} // families whose default route has been looked at
	for _, address := range result.IPs {
		// The mask has 16 bytes, as the reference's: errors have it.
		family, anywhere := netlink.FAMILY_V4, net.IPNet{IP: net.IPv4zero, Mask: net.IPMask(net.IPv4zero)}
		switch {
		case address.Address.IP.To4() != nil:
		case len(address.Address.IP) == net.IPv6len:
			family, anywhere = netlink.FAMILY_V6, net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		default:
			return nil, fmt.Errorf("Unknown IP object: %v", address)
		}
		address.Interface = types100.Int(2)
		if address.Gateway == nil && n.IsGateway {
			address.Gateway = ip.NextIP(networkOf(address.Address))
		}
		if n.IsDefaultGateway && !routed[family] {
			routed[family] = true
			if !hasRoute(result.Routes, anywhere) {
				result.Routes = append(result.Routes, &types.Route{Dst: anywhere, GW: address.Gateway})
			}
		}
		if !n.IsGateway {
			continue
		}
		gw := gateway{family, net.IPNet{IP: address.Gateway, Mask: address.Address.Mask}}
		if family == netlink.FAMILY_V4 {
			v4 = append(v4, gw)
		} else {
			v6 = append(v6, gw)
		}
	}
	return append(v4, v6...), nil
}

// hasRoute reports whether there is a route to dst by a gateway.
func hasRoute(routes []*types.Route, dst net.IPNet) bool {
	for _, r := range routes {
		if r.GW != nil && r.Dst.String() == dst.String() {
			return true
		}
	}
	return false
}

// beGateway gives the bridge, or its interface in the VLAN, the gateways' addresses, and has the
// host forward.
func (n *conf) beGateway(c *plugin.Call, br *netlink.Bridge, gateways []gateway, result *types100.Result) error {
	c.Stage("gateway")
	var holder netlink.Link = br
	for i, gw := range gateways {
		what := "failed to set bridge addr"
		if n.Vlan != 0 {
			what = "failed to set vlan interface for bridge with addr"
			if holder == netlink.Link(br) {
				link, err := ensureVlanLink(c, br, n)
				if err != nil {
					return fmt.Errorf("failed to create vlan interface: %w", err)
				}
				holder = link
				result.Interfaces = append(result.Interfaces, &types100.Interface{Name: link.Attrs().Name, Mac: link.Attrs().HardwareAddr.String()})
			}
		}
		if err := ensureAddress(c, holder, gw, n.ForceAddress); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if i+1 < len(gateways) && gateways[i+1].family == gw.family {
			continue // the host forwards once it has all addresses of a family, as with the reference
		}
		enable := ip.EnableIP4Forward
		if gw.family == netlink.FAMILY_V6 {
			enable = ip.EnableIP6Forward
		}
		if err := enable(); err != nil {
			return fmt.Errorf("failed to enable forwarding: %w", err)
		}
	}
	return nil
}

// ensureVlanLink makes the host's own interface in the VLAN unless it exists.
func ensureVlanLink(c *plugin.Call, br *netlink.Bridge, n *conf) (netlink.Link, error) {
	name := fmt.Sprintf("%s.%d", br.Name, n.Vlan)
	link, err := netlinksafe.LinkByName(name)
	if err == nil {
		return link, nil
	}
	if missing := (netlink.LinkNotFoundError{}); !errors.As(err, &missing) {
		return nil, fmt.Errorf("failed to find interface %q: %w", name, err)
	}
	host, err := ns.GetNS(c.Home().Name())
	if err != nil {
		return nil, fmt.Errorf("faild to find host namespace: %w", err)
	}
	defer host.Close()
	pair, err := newPort(c, host, br, port{name: name, mtu: br.MTU, vlan: n.Vlan, keepDefaultVlan: n.PreserveDefaultVlan})
	if err != nil {
		return nil, fmt.Errorf("faild to create vlan gateway %q: %w", name, err)
	}
	defer pair.Close()
	if err := netlink.LinkSetUp(pair.Pod); err != nil {
		return nil, fmt.Errorf("failed to up %q: %w", name, err)
	}
	return netlinksafe.LinkByName(name)
}

// ensureAddress gives a link an address. Another address that would be in the way is an error, or
// removed with force.
func ensureAddress(c *plugin.Call, link netlink.Link, gw gateway, force bool) error {
	name, want := link.Attrs().Name, gw.address.String()
	addresses, err := netlinksafe.AddrList(link, gw.family)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("could not get list of IP addresses: %w", err)
	}
	for _, a := range addresses {
		if a.IPNet.String() == want {
			return nil
		}
		overlaps := a.IPNet.Contains(gw.address.IP) || gw.address.Contains(a.IP)
		if gw.family != netlink.FAMILY_V4 && !overlaps {
			continue // a link may have several subnets of IPv6
		}
		if !force {
			return fmt.Errorf("%q already has an IP address different from %v", name, want)
		}
		if err := c.Links().AddrDel(link, &netlink.Addr{IPNet: a.IPNet}); err != nil {
			return fmt.Errorf("could not remove IP address from %q: %w", name, err)
		}
	}
	if err := c.Links().AddrAdd(link, &netlink.Addr{IPNet: &gw.address}); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("could not add IP address %s to %q: %w", want, name, err)
	}
	// A MAC that is set stays. Otherwise the bridge has the lowest one of its ports.
	if err := c.Links().LinkSetHardwareAddr(link, link.Attrs().HardwareAddr); err != nil {
		return fmt.Errorf("could not set bridge's mac: %w", err)
	}
	return nil
}

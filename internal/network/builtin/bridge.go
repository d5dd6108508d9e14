package builtin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/builtin/hostfirewall"
	"github.com/berthrun/berth/internal/network/rulesetwatch"
	"github.com/berthrun/berth/internal/sys/sysnet"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// defaultMTU is for hosts without a default route, whose MTU would be used.
const defaultMTU = 1500

// ensureBridge makes or repairs the bridge: up, with the addresses of the gateways and no others
// of the pods' families. The calling thread is in the host's network namespace.
func (h *host) ensureBridge(name string, subnets []netip.Prefix, mtu int) error {
	if mtu == 0 {
		mtu = h.defaultRouteMTU()
	}
	h.linkMTU.Store(int32(mtu))
	link, err := h.bridge(name, subnets, mtu)
	if err != nil {
		return err
	}
	if err := h.forwarding(name, subnets); err != nil {
		return err
	}
	if err := h.gateways(link, subnets); err != nil {
		return err
	}
	if err := h.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("cannot bring up bridge %s: %w", name, err)
	}
	h.bridgeIndex.Store(int32(link.Attrs().Index))
	return nil
}

// bridge returns the link of the bridge, and makes it if there is none.
func (h *host) bridge(name string, subnets []netip.Prefix, mtu int) (netlink.Link, error) {
	link, err := h.handle.LinkByName(name)
	if err == nil {
		if link.Type() != "bridge" {
			return nil, fmt.Errorf("link %s is a %s and not a bridge; set another bridge name: %w", name, link.Type(), errs.Exists)
		}
		return link, nil
	}
	if !errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, fmt.Errorf("cannot look up bridge %s: %w", name, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	// An address that is set does not change with the ports. Every pod has it in its neighbour
	// table.
	attrs.HardwareAddr = net.HardwareAddr(macOf(at(subnets[0], 1)))
	// Snooping would send IGMP and MLD queries to all pods.
	snooping := false
	if err := h.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("cannot make bridge %s: %w", name, err)
	}
	if link, err = h.handle.LinkByName(name); err != nil {
		return nil, fmt.Errorf("cannot look up bridge %s: %w", name, err)
	}
	return link, nil
}

// forwarding sets what the kernel needs to route between the bridge and the rest.
func (h *host) forwarding(bridge string, subnets []netip.Prefix) error {
	// route_localnet lets 127.0.0.1:PORT of the host reach a pod; a rule of our
	// table prevents that pods reach 127.0.0.1 of the host by it.
	set := [][2]string{{"ipv4/ip_forward", "1"}, {"ipv4/conf/" + bridge + "/route_localnet", "1"}}
	if slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		if err := keepRouterAdvertisements(bridge); err != nil {
			return err
		}
		set = append(set,
			[2]string{"ipv6/conf/" + bridge + "/disable_ipv6", "0"},
			[2]string{"ipv6/conf/" + bridge + "/accept_ra", "0"},
			[2]string{"ipv6/conf/" + bridge + "/accept_dad", "0"},
			[2]string{"ipv6/conf/all/forwarding", "1"})
	}
	for _, s := range set {
		if err := setSysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

// keepRouterAdvertisements makes links that learn their IPv6 routes from
// advertisements go on doing so (accept_ra 2): with forwarding on, the kernel
// would else drop the host's own default route.
func keepRouterAdvertisements(bridge string) error {
	if value, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/forwarding"); err == nil && strings.TrimSpace(string(value)) == "1" {
		return nil
	}
	files, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return err
	}
	for _, file := range files {
		link := filepath.Base(filepath.Dir(file))
		value, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(value)) != "1" || link == "all" || link == "lo" || link == bridge {
			continue
		}
		if err := errs.IgnoreNotExist(setSysctl("ipv6/conf/"+link+"/accept_ra", "2")); err != nil {
			return err
		}
	}
	return nil
}

// gateways gives the bridge the first address of each subnet and removes those of former
// subnets.
func (h *host) gateways(link netlink.Link, subnets []netip.Prefix) error {
	have, err := sysnet.WholeList(func() ([]netlink.Addr, error) { return h.handle.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("cannot list the addresses of %s: %w", link.Attrs().Name, err)
	}
	var want []netip.Prefix
	for _, s := range subnets {
		want = append(want, netip.PrefixFrom(at(s, 1), s.Bits()))
	}
	for _, a := range have {
		addr, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if addr.IsLinkLocalUnicast() || slices.Contains(want, netip.PrefixFrom(addr.Unmap(), ones)) {
			continue
		}
		if err := h.handle.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("cannot remove %s from %s: %w", a.IPNet, link.Attrs().Name, err)
		}
	}
	for _, p := range want {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.handle.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("cannot give %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

// promiscuousFile has the name and the index of a bridge whose flag berth has set.
const promiscuousFile = "promiscuous"

// setPromiscuous sets the flag of the bridge in the hairpin mode that needs it, and clears it in others
// if berth has set it: the bridge may be one that another program has made promiscuous. Programs that
// capture packets have a counter of their own in the kernel.
func (n *Network) setPromiscuous() error {
	bridge, err := n.host.handle.LinkByIndex(int(n.host.bridgeIndex.Load()))
	if err != nil {
		return fmt.Errorf("cannot look up bridge %s: %w", n.cfg.Bridge, err)
	}
	file := filepath.Join(n.cfg.StateDir, promiscuousFile)
	record := fmt.Sprintf("%s %d", n.cfg.Bridge, bridge.Attrs().Index)
	if n.cfg.Hairpin == PromiscuousBridge {
		if bridge.Attrs().RawFlags&unix.IFF_PROMISC != 0 {
			return nil
		}
		if err := os.WriteFile(file, []byte(record), 0o600); err != nil {
			return fmt.Errorf("cannot record the promiscuous mode of bridge %s: %w", n.cfg.Bridge, err)
		}
		if err := n.host.handle.SetPromiscOn(bridge); err != nil {
			return fmt.Errorf("cannot make bridge %s promiscuous: %w", n.cfg.Bridge, err)
		}
		return nil
	}
	recorded, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read which bridge is promiscuous: %w", err)
	}
	if string(recorded) == record {
		if err := n.host.handle.SetPromiscOff(bridge); err != nil {
			return fmt.Errorf("cannot end the promiscuous mode of bridge %s: %w", n.cfg.Bridge, err)
		}
	}
	return errs.IgnoreNotExist(os.Remove(file))
}

// defaultRouteMTU is the MTU of the link that the host's traffic leaves by.
func (h *host) defaultRouteMTU() int {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.handle.RouteList(nil, family)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if r.Dst != nil {
				if ones, _ := r.Dst.Mask.Size(); ones != 0 {
					continue
				}
			}
			if link, err := h.handle.LinkByIndex(r.LinkIndex); err == nil && link.Attrs().MTU >= 1280 {
				return min(link.Attrs().MTU, 65535)
			}
		}
	}
	return defaultMTU
}

// removeBridge removes the bridge. Nil when there is none.
func (h *host) removeBridge(name string) error {
	link, err := h.handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil && link.Type() == "bridge" {
		err = h.handle.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot remove bridge %s: %w", name, err)
	}
	return nil
}

// macOf is the link address of the pod with an address. One address always has the same link
// address, so that no neighbour table goes stale when it is reused.
func macOf(addr netip.Addr) []byte {
	b := addr.As16()
	return append([]byte{0x0a, 0x58}, b[12:]...)
}

// build makes or repairs everything on the host but for what fire.EnsureLegacy does. It runs on a thread of the host;
// the caller holds n.repairing, or is New.
func (n *Network) build() error {
	n.mu.Lock()
	subnets := n.subnets
	n.mu.Unlock()
	before := n.host.bridgeIndex.Load()
	if err := n.host.ensureBridge(n.cfg.Bridge, subnets, n.cfg.MTU); err != nil {
		return err
	}
	if err := n.setPromiscuous(); err != nil {
		return err
	}
	mac, err := n.host.macOfBridge()
	if err != nil {
		return err
	}
	n.table.setBridgeMAC(mac)
	if now := n.host.bridgeIndex.Load(); now != before {
		if err := n.adoptPorts(int(now)); err != nil {
			return err
		}
	}
	if err := n.table.rebuild(subnets, n.elements); err != nil {
		return err
	}
	return n.fire.Ensure()
}

// repair does what build does if something of it is missing. thorough looks at
// more than the request path can afford. It runs on a thread of the host.
func (n *Network) repair(ctx context.Context, thorough bool) error {
	if err := n.awaiting(); err != nil {
		return err
	}
	if err := n.repairKernel(thorough); err != nil {
		return err
	}
	if thorough {
		n.fire.EnsureLegacy(ctx) // not under n.repairing, which attachments wait for
	}
	return nil
}

// repairKernel repairs what needs no program.
func (n *Network) repairKernel(thorough bool) error {
	n.repairing.Lock()
	defer n.repairing.Unlock()
	index := n.host.index(n.cfg.Bridge)
	intact := index != 0 && index == int(n.host.bridgeIndex.Load())
	if intact && thorough {
		intact = n.host.bridgeUp()
	}
	changed := false
	if intact {
		var err error
		if changed, intact, err = n.table.check(); err != nil {
			return err
		}
	}
	if !intact {
		n.log.Warn("the bridge or the nftables table of the built-in network was missing or changed; creating it again",
			"bridge", n.cfg.Bridge, "table", n.table.name)
		return n.build()
	}
	if n.fire.Due(changed, thorough) {
		return n.fire.Ensure()
	}
	return nil
}

// watchRuleset repairs the table and the rules in the host's firewall when another program has
// removed them: "nft flush ruleset" and a reload of firewalld remove those of all programs. It runs
// on a thread of the host.
func (n *Network) watchRuleset() (err error) {
	n.watch, err = rulesetwatch.Open(func(ctx context.Context) (complete bool) {
		if err := n.host.do(func() error { return n.repair(ctx, false) }); err != nil && n.awaiting() == nil && ctx.Err() == nil {
			n.log.Warn("cannot repair the built-in network after a change of the host's nftables ruleset", "error", err)
			return false
		}
		return !n.fire.Pending()
	}, hostfirewall.CheckPause)
	return err
}

// macOfBridge is the link address of the bridge. A bridge that berth has not made has its own.
func (h *host) macOfBridge() ([]byte, error) {
	link, err := h.handle.LinkByIndex(int(h.bridgeIndex.Load()))
	if err != nil {
		return nil, fmt.Errorf("cannot look up the bridge: %w", err)
	}
	return link.Attrs().HardwareAddr, nil
}

// bridgeUp reports whether the bridge is up.
func (h *host) bridgeUp() bool {
	link, err := h.handle.LinkByIndex(int(h.bridgeIndex.Load()))
	return err == nil && link.Attrs().Flags&net.FlagUp != 0
}

// adoptPorts attaches the links of all attachments to a bridge that is new to this process. Most are on it
// already, with the configuration of an earlier process.
func (n *Network) adoptPorts(bridge int) error {
	ports, err := n.host.ports(bridge)
	if err != nil {
		return err
	}
	var errList []error
	for _, rec := range n.records.All() {
		if p, there := ports[rec.Link]; there && p.Hairpin == n.cfg.Hairpin.ports() {
			continue
		}
		link, err := n.host.handle.LinkByName(rec.Link)
		if err == nil && link.Attrs().MasterIndex != bridge {
			err = n.host.handle.LinkSetMasterByIndex(link, bridge)
		}
		if err == nil { // an earlier process may have had another configuration
			err = n.host.handle.LinkSetHairpin(link, n.cfg.Hairpin.ports())
		}
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.As(err, &netlink.LinkNotFoundError{}) {
			errList = append(errList, fmt.Errorf("cannot put link %s on the bridge: %w", rec.Link, err))
		}
	}
	return errors.Join(errList...)
}

// adoptLinks makes records for links on the bridge whose record was lost or damaged: no other pod
// may get their addresses while a pod may have them. GC frees those of sandboxes that are gone.
func (n *Network) adoptLinks() error {
	bridge := n.host.index(n.cfg.Bridge)
	if bridge == 0 {
		return nil
	}
	boot, err := sysproc.BootID()
	if err != nil {
		return err
	}
	ports, err := n.host.ports(bridge)
	if err != nil {
		return err
	}
	for _, p := range ports {
		rec, ours := recordOf(p.Name, p.Alias, boot)
		if !ours {
			continue
		}
		if _, err := n.records.Get(rec.Sandbox); err == nil {
			continue
		}
		if err := n.records.Create(rec.Sandbox, rec); err != nil {
			return err
		}
		n.log.Warn("found an attachment without a record by its link; its host ports are lost",
			"sandbox", rec.Sandbox, "link", rec.Link, "addresses", joinPrefixes(rec.Addrs))
	}
	return nil
}

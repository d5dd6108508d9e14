package builtin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/builtin/linkmsg"
	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
	"github.com/berthrun/berth/internal/network/hostport"
)

// openPorts maps the record's ports. When the table has changed since its check, openPorts creates
// it again, with these ports in it.
func (n *Network) openPorts(rec *record) error {
	if len(rec.Ports) == 0 {
		return nil
	}
	if err := n.table.change(elementsOf(rec), nil); err != nil {
		if err := n.rebuild(err); err != nil {
			return err
		}
	}
	return n.removeFlows(rec)
}

// warnPorts logs ports that lead nowhere. The pod starts all the same, as with other runtimes: the host may get the
// address later.
func (n *Network) warnPorts(rec *record) {
	has := hostHas(n.host.localAddrs, func(err error) {
		n.log.Warn("cannot find out whether the host has the host IPs of ports", "sandbox", rec.Sandbox, "error", err)
	})
	hostport.Warn(n.log, rec.holder(), hostport.UnservedOf(rec.Ports, rec.families(), has))
}

// hostHas reports whether an address is among the host's, which it lists at the first question. If it cannot, it counts each
// address as one of them, and calls failed once.
func hostHas(list func() (map[netip.Addr]bool, error), failed func(error)) func(netip.Addr) bool {
	addrs := sync.OnceValues(func() (map[netip.Addr]bool, error) {
		all, err := list()
		if err != nil {
			failed(err)
		}
		return all, err
	})
	return func(addr netip.Addr) bool {
		all, err := addrs()
		return err != nil || all[addr]
	}
}

// closePorts takes the ports of a released record out of the maps.
func (n *Network) closePorts(rec *record) error {
	if len(rec.Ports) == 0 {
		return nil
	}
	if err := n.table.change(nil, n.table.present(elementsOf(rec))); err != nil {
		// The record is released, so a new table is without its ports.
		if err := n.rebuild(err); err != nil {
			return err
		}
	}
	n.ports.Free(rec.Sandbox, rec.sockets())
	return n.removeFlows(rec)
}

// rebuild makes the table again after a change was refused.
func (n *Network) rebuild(cause error) error {
	n.repairing.Lock()
	defer n.repairing.Unlock()
	n.log.Warn("cannot change the nftables table of the built-in network; creating it again",
		"table", n.table.name, "error", cause)
	if err := n.build(); err != nil {
		return errors.Join(cause, err)
	}
	return nil
}

// elementsOf are the map entries of a record's ports.
func elementsOf(rec *record) []element {
	var all []element
	for _, p := range rec.Ports {
		for _, s := range hostport.Sockets(p, rec.families()) {
			e := element{
				key: nftexpr.KeyProto(hostport.Protocols()[s.Proto]) + nftexpr.KeyPort(s.Port),
				val: nftexpr.KeyAddr(rec.addr(s.Addr.Is4())) + nftexpr.KeyPort(p.ContainerPort),
			}
			switch v4 := s.Addr.Is4(); {
			case s.Addr.IsUnspecified() && v4:
				e.set = mapAny4
			case s.Addr.IsUnspecified():
				e.set = mapAny6
			case v4:
				e.set, e.key = mapAddr4, nftexpr.KeyAddr(s.Addr)+e.key
			default:
				e.set, e.key = mapAddr6, nftexpr.KeyAddr(s.Addr)+e.key
			}
			all = append(all, e)
		}
	}
	return all
}

// socketOf reads a map's key, the inverse of elementsOf.
func socketOf(set string, key []byte) (hostport.Socket, bool) {
	s := hostport.Socket{Addr: netip.IPv4Unspecified()}
	switch set {
	case mapAny6:
		s.Addr = netip.IPv6Unspecified()
	case mapAddr4, mapAddr6:
		if len(key) < 8 {
			return s, false
		}
		addr, ok := netip.AddrFromSlice(key[:len(key)-8])
		if !ok {
			return s, false
		}
		s.Addr, key = addr, key[len(key)-8:]
	}
	if len(key) != 8 {
		return s, false
	}
	for name, number := range hostport.Protocols() {
		if number == key[0] {
			s.Proto = name
		}
	}
	s.Port = binary.BigEndian.Uint16(key[4:])
	return s, s.Proto != ""
}

// OwnerOfElement returns whose an element of the instance's tables is: the pod's address of an entry
// of a map of host ports, or the host's end of an entry of a set that checks frames. Both are zero
// for anything else.
func OwnerOfElement(set string, key, val []byte) (pod netip.Addr, link string) {
	switch set {
	case mapAny4, mapAny6, mapAddr4, mapAddr6:
		if port := len(nftexpr.KeyPort(0)); len(val) > port {
			pod, _ = netip.AddrFromSlice(val[:len(val)-port])
		}
	case setGuarded, setMACs, setAddrs4, setAddrs6:
		if name := len(nftexpr.KeyLink("")); len(key) >= name {
			link = strings.TrimRight(string(key[:name]), "\x00")
		}
	}
	return pod, link
}

// elements are the map and set entries of all attachments.
func (n *Network) elements() []element {
	var all []element
	for _, rec := range n.records.All() {
		all = append(all, n.table.frameElements(rec)...) // while its link may be there
		if !rec.Released {
			all = append(all, elementsOf(rec)...)
		}
	}
	return all
}

// removeFlows removes the kernel's entries of UDP flows to the record's host ports. A flow is
// translated as its first packet was, so without this a client that keeps sending would not reach a
// new pod, and would keep sending to a former one. The kernel's list is read for UDP ports only.
func (n *Network) removeFlows(rec *record) error {
	stale := &staleFlows{pods: map[netip.Addr]bool{}, ports: map[uint16]bool{}}
	for _, p := range rec.Ports {
		if p.Protocol == "udp" {
			stale.ports[p.HostPort] = true
		}
	}
	if len(stale.ports) == 0 {
		return nil
	}
	local, err := n.host.localAddrs()
	if err != nil {
		return err
	}
	stale.local = local
	families := map[netlink.InetFamily]bool{}
	for _, p := range rec.Addrs {
		stale.pods[p.Addr()] = true
		families[netlink.InetFamily(linkmsg.Family(p.Addr()))] = true
	}
	for f := range families {
		if _, err := n.host.handle.ConntrackDeleteFilters(netlink.ConntrackTable, f, stale); err != nil {
			return fmt.Errorf("cannot remove the kernel's UDP flows to host ports: %w", err)
		}
	}
	return nil
}

// staleFlows matches UDP flows to the ports on the host's own addresses, and those
// that were translated to the pod.
type staleFlows struct {
	pods  map[netip.Addr]bool
	ports map[uint16]bool
	local map[netip.Addr]bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s *staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP || !s.ports[flow.Forward.DstPort] {
		return false
	}
	return s.local[addrOf(flow.Forward.DstIP)] || s.pods[addrOf(flow.Reverse.SrcIP)]
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

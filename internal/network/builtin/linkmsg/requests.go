// Package linkmsg writes the kernel's messages about links, addresses and routes, and reads its
// answers. It is pure: it knows the messages, and opens no socket.
package linkmsg

import (
	"encoding/binary"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysnet"
)

// Pair is a veth pair: one end is a port of a bridge in the host's network namespace, the other
// end is in the pod's.
type Pair struct {
	// Port is the name of the host's end, and Alias its alias.
	Port, Alias string
	// Bridge is the index of the bridge's link.
	Bridge int
	// Peer is the name of the pod's end, PeerMAC its link address.
	Peer    string
	PeerMAC []byte
	// PeerNetNS is the pod's network namespace.
	PeerNetNS *os.File
	// MTU is for both ends, in bytes.
	MTU int
	// Hairpin lets the bridge send a frame out by the port that it came in by.
	Hairpin bool
}

// Create returns the requests that make the pair and configure the host's end, for a socket in
// the host's network namespace. The two ends cannot be made and brought up in one request.
func (p Pair) Create() []sysnet.NetlinkRequest {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.Peer))
	peer.AddRtAttr(unix.IFLA_ADDRESS, p.PeerMAC)
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.MTU)))
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(p.PeerNetNS.Fd())))
	// One queue in each direction. The kernel makes one per processor by default, which only
	// XDP uses on such a link, and each costs entries in sysfs.
	peer.AddRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1))
	peer.AddRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1))
	create := sysnet.NetlinkRequest{
		Type: unix.RTM_NEWLINK, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC),
			ifname(p.Port),
			nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.MTU))),
			nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)),
			nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)),
			nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(p.Bridge))),
			info),
	}
	return []sysnet.NetlinkRequest{create, p.configurePort()}
}

// configurePort brings the host's end up, with its alias and the settings of a port.
func (p Pair) configurePort() sysnet.NetlinkRequest {
	// No IPv6 link-local address on the host's end: with hundreds of ports the neighbour
	// discovery, flooded to all of them, costs more than the pods' own traffic.
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{nl.IN6_ADDR_GEN_MODE_NONE})
	mode := byte(0)
	if p.Hairpin {
		mode = 1
	}
	port := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	port.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	port.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil).AddRtAttr(nl.IFLA_BRPORT_MODE, []byte{mode})
	return sysnet.NetlinkRequest{
		Type:    unix.RTM_NEWLINK, // SETLINK would ignore the settings of the port
		Payload: payload(up(), ifname(p.Port), nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(p.Alias)), spec, port),
	}
}

// BringUp returns the request that brings a link up.
func BringUp(link string) sysnet.NetlinkRequest {
	return sysnet.NetlinkRequest{Type: unix.RTM_SETLINK, Payload: payload(up(), ifname(link))}
}

// Get returns the request that describes a link. The answer is for Index, SeenUp and Forwards.
func Get(link string) sysnet.NetlinkRequest {
	return sysnet.NetlinkRequest{Type: unix.RTM_GETLINK, Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC), ifname(link))}
}

// Ports returns the request for a list of the ports of the bridge with an index. The messages are for ReadPort.
func Ports(bridge int) sysnet.NetlinkRequest {
	const withoutStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	return sysnet.NetlinkRequest{Type: unix.RTM_GETLINK, Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))),
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(withoutStatistics)))}
}

// Delete returns the request that removes a link.
func Delete(link string) sysnet.NetlinkRequest {
	return sysnet.NetlinkRequest{Type: unix.RTM_DELLINK, Payload: payload(nl.NewIfInfomsg(unix.AF_UNSPEC), ifname(link))}
}

// AddAddress returns the request that gives an address to the link with an index. An IPv6 address
// is usable at once: duplicate address detection, which takes a second, is off for it.
func AddAddress(index int, addr netip.Prefix) sysnet.NetlinkRequest {
	head := &nl.IfAddrmsg{IfAddrmsg: unix.IfAddrmsg{
		Family: Family(addr.Addr()), Prefixlen: uint8(addr.Bits()), Index: uint32(index),
	}}
	attrs := []*nl.RtAttr{
		nl.NewRtAttr(unix.IFA_LOCAL, addr.Addr().AsSlice()),
		nl.NewRtAttr(unix.IFA_ADDRESS, addr.Addr().AsSlice()),
	}
	if addr.Addr().Is6() {
		attrs = append(attrs, nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(unix.IFA_F_NODAD)))
	} else {
		attrs = append(attrs, nl.NewRtAttr(unix.IFA_BROADCAST, broadcast(addr).AsSlice()))
	}
	return sysnet.NetlinkRequest{
		Type: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Payload: payload(head, attrs...),
	}
}

// AddDefaultRoute returns the request that makes a default route by the link with an index.
func AddDefaultRoute(index int, gateway netip.Addr) sysnet.NetlinkRequest {
	head := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: Family(gateway), Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_BOOT,
		Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST,
	}}
	return sysnet.NetlinkRequest{
		Type: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
		Payload: payload(head,
			nl.NewRtAttr(unix.RTA_GATEWAY, gateway.AsSlice()),
			nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index)))),
	}
}

// Family is the address family of an address: unix.AF_INET or unix.AF_INET6.
func Family(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// up is the header of a message that brings a link up.
func up() *nl.IfInfomsg {
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Flags, head.Change = unix.IFF_UP, unix.IFF_UP
	return head
}

// ifname is the attribute by which a message names its link.
func ifname(link string) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(link)) }

// payload joins the header of a message and its attributes.
func payload(head nl.NetlinkRequestData, attrs ...*nl.RtAttr) []byte {
	b := append([]byte(nil), head.Serialize()...)
	for _, a := range attrs {
		b = append(b, a.Serialize()...)
	}
	return b
}

// broadcast is the last address of the subnet of an IPv4 address.
func broadcast(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	ip := binary.BigEndian.Uint32(b[:]) | (1<<(32-p.Bits()) - 1)
	binary.BigEndian.PutUint32(b[:], ip)
	return netip.AddrFrom4(b)
}

package nftexpr

import (
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// All of this is for tables of the family ip or ip6. It compares addresses of packets, and none that
// conntrack has: nft cannot print a rule that looks up such an address in a set.

// MatchReply matches packets of the direction that answers, or of the one that began the connection.
// A packet without a connection has no direction.
func MatchReply(reply bool) []expr.Any {
	direction := []byte{0} // IP_CT_DIR_ORIGINAL
	if reply {
		direction = []byte{1} // IP_CT_DIR_REPLY
	}
	return []expr.Any{&expr.Ct{Register: reg, Key: expr.CtKeyDIRECTION}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: direction}}
}

// MatchInvalid matches packets that belong to no connection and cannot begin one.
func MatchInvalid() []expr.Any { return matchConntrack(expr.CtKeySTATE, expr.CtStateBitINVALID) }

// MatchErrors matches ICMP errors about a connection.
func MatchErrors(v4 bool) []expr.Any {
	proto := byte(unix.IPPROTO_ICMPV6)
	if v4 {
		proto = unix.IPPROTO_ICMP
	}
	return append(MatchProto(proto), matchConntrack(expr.CtKeySTATE, expr.CtStateBitRELATED)...)
}

// MatchFromHost matches packets whose source is an address of this host.
func MatchFromHost() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// DispatchAddr follows the verdict that a map has for an address of the packet.
func DispatchAddr(side Side, v4 bool, verdicts string) []expr.Any {
	return []expr.Any{LoadAddr(side, v4, reg), &expr.Lookup{SourceRegister: reg, SetName: verdicts, IsDestRegSet: true}}
}

// MatchAddrInSet matches packets with an address in a set of addresses, or of ranges of them.
func MatchAddrInSet(side Side, v4 bool, set string) []expr.Any {
	return []expr.Any{LoadAddr(side, v4, reg), &expr.Lookup{SourceRegister: reg, SetName: set}}
}

// MatchAddrsInSet matches packets whose source . destination is in a set.
func MatchAddrsInSet(v4 bool, set string) []expr.Any {
	words := uint32(4) // an address in 32-bit registers
	if v4 {
		words = 1
	}
	return []expr.Any{LoadAddr(Source, v4, reg32), LoadAddr(Destination, v4, reg32+words), &expr.Lookup{SourceRegister: reg32, SetName: set}}
}

// MatchProto matches packets of an IP protocol, such as unix.IPPROTO_TCP.
func MatchProto(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
	}
}

// MatchPorts matches packets of a protocol with a port of a range on one side.
func MatchPorts(side Side, proto byte, first, last uint16) []expr.Any {
	match := MatchProto(proto)
	if first == 0 && last == 65535 {
		return match
	}
	load := &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Len: 2}
	if side == Destination {
		load.Offset = 2
	}
	low, high := []byte{byte(first >> 8), byte(first)}, []byte{byte(last >> 8), byte(last)}
	if first == last {
		return append(match, load, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: low})
	}
	return append(match, load, &expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: low}, &expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: high})
}

// MatchUntracked matches packets that conntrack does not follow: those of neighbour discovery and MLD,
// whatever address they have, and those that a rule (notrack) excepts.
func MatchUntracked() []expr.Any { return matchConntrack(expr.CtKeySTATE, expr.CtStateBitUNTRACKED) }

// MatchNeighbourDiscovery matches messages of neighbour discovery as RFC 4861 demands them: no router has
// forwarded them. Redirects (type 137) are not among them.
func MatchNeighbourDiscovery() []expr.Any {
	return join(matchICMPv6Types(133, 136), matchHopLimit(255))
}

// MatchMulticastListeners returns the matches of messages of multicast listener discovery (MLD, versions 1
// and 2) to groups, as RFC 2710 and RFC 3810 demand them.
func MatchMulticastListeners() [][]expr.Any {
	var all [][]expr.Any
	for _, types := range [][2]byte{{130, 132}, {143, 143}} {
		all = append(all, join(matchICMPv6Types(types[0], types[1]), matchHopLimit(1), MatchMulticast(false)))
	}
	return all
}

// matchICMPv6Types matches ICMPv6 messages with a type of a range, behind extension headers too.
func matchICMPv6Types(first, last byte) []expr.Any {
	return append(MatchProto(unix.IPPROTO_ICMPV6),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: []byte{first}},
		&expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: []byte{last}},
	)
}

func matchHopLimit(limit byte) []expr.Any {
	const hopLimit = 7 // its offset in a header of IPv6
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: hopLimit, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{limit}},
	}
}

// MatchMulticast matches packets to a group.
func MatchMulticast(v4 bool) []expr.Any {
	prefix := netip.MustParsePrefix("ff00::/8")
	if v4 {
		prefix = netip.MustParsePrefix("224.0.0.0/4")
	}
	return MatchAddrPrefix(Destination, prefix, true)
}

// MatchBroadcast matches packets of IPv4 to a broadcast address, also to that of a subnet of this host.
func MatchBroadcast() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_BROADCAST)},
	}
}

// MatchFramesToMany matches packets in a frame to all or to a group of stations.
func MatchFramesToMany() [][]expr.Any {
	var all [][]expr.Any
	for _, kind := range []byte{unix.PACKET_BROADCAST, unix.PACKET_MULTICAST} {
		all = append(all, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{kind}},
		})
	}
	return all
}

func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

package nftexpr

import (
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// etherType is the offset of the type in an Ethernet header.
const etherType = 12

// Part loads a part of the frame into the registers behind those that MatchLinkInSet fills with
// the link's name.
func Part(base expr.PayloadBase, offset, length uint32) *expr.Payload {
	return &expr.Payload{DestRegister: reg32 + unix.IFNAMSIZ/4, Base: base, Offset: offset, Len: length}
}

// MatchLinkInSet matches frames whose key is in a set, or is not: the link that the frame came in
// by, and a part of the frame unless part is nil.
func MatchLinkInSet(set string, part *expr.Payload, in bool) []expr.Any {
	load := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg32}}
	if part != nil {
		load = append(load, part)
	}
	return append(load, &expr.Lookup{SourceRegister: reg32, SetName: set, Invert: !in})
}

// MatchPart matches frames with these bytes in a part.
func MatchPart(part *expr.Payload, want []byte) []expr.Any {
	return []expr.Any{part, &expr.Cmp{Op: expr.CmpOpEq, Register: part.DestRegister, Data: want}}
}

// MatchPartPrefix matches frames with an address of a prefix in a part.
func MatchPartPrefix(part *expr.Payload, p netip.Prefix) []expr.Any {
	bits := p.Addr().BitLen()
	register := part.DestRegister
	return []expr.Any{
		part,
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(bits / 8), Mask: net.CIDRMask(p.Bits(), bits), Xor: make([]byte, bits/8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: p.Masked().Addr().AsSlice()},
	}
}

// MatchEtherType matches the type of the frame (unix.ETH_P_IP, ...). A tagged frame has the tag's.
func MatchEtherType(kind uint16) []expr.Any {
	return MatchPart(Part(expr.PayloadBaseLLHeader, etherType, 2), []byte{byte(kind >> 8), byte(kind)})
}

// MatchICMPv6 matches ICMPv6 messages of one type, behind extension headers too.
func MatchICMPv6(kind byte) []expr.Any {
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg32, Data: []byte{unix.IPPROTO_ICMPV6}},
	}, MatchPart(Part(expr.PayloadBaseTransportHeader, 0, 1), []byte{kind})...)
}

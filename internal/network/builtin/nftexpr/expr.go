// Package nftexpr has the expressions of nftables rules, and the parts of the keys of nftables
// sets. It is pure: it knows packets and registers, and no table.
package nftexpr

import (
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The registers. A concatenation fills consecutive 32-bit registers.
const (
	reg   = 1                 // the first 128-bit register
	reg32 = unix.NFT_REG32_00 // the same place, as 32-bit registers
)

// Side is one of the two addresses of a packet.
type Side int

// The sides.
const (
	Source Side = iota
	Destination
)

// matchFamily matches the packets of one family, in a table of both.
func matchFamily(v4 bool) []expr.Any {
	proto := byte(unix.NFPROTO_IPV6)
	if v4 {
		proto = unix.NFPROTO_IPV4
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
	}
}

// LoadAddr puts a packet's address into a register.
func LoadAddr(side Side, v4 bool, register uint32) *expr.Payload {
	offset, length := uint32(8), uint32(16)
	if v4 {
		offset, length = 12, 4
	}
	if side == Destination {
		offset += length
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

// MatchPrefix matches packets whose address on a side is in a prefix, or is not.
func MatchPrefix(side Side, p netip.Prefix, in bool) []expr.Any {
	return append(matchFamily(p.Addr().Is4()), MatchAddrPrefix(side, p, in)...)
}

// MatchAddrPrefix is MatchPrefix for a table of the prefix's family: nft cannot print a rule there that names
// the family.
func MatchAddrPrefix(side Side, p netip.Prefix, in bool) []expr.Any {
	op := expr.CmpOpNeq
	if in {
		op = expr.CmpOpEq
	}
	v4, bits := p.Addr().Is4(), p.Addr().BitLen()
	return []expr.Any{
		LoadAddr(side, v4, reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(bits / 8), Mask: net.CIDRMask(p.Bits(), bits), Xor: make([]byte, bits/8)},
		&expr.Cmp{Op: op, Register: reg, Data: p.Masked().Addr().AsSlice()},
	}
}

// MatchLink matches packets that come in or go out by a link, or do not.
func MatchLink(key expr.MetaKey, link string, equal bool) []expr.Any {
	op := expr.CmpOpNeq
	if equal {
		op = expr.CmpOpEq
	}
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg},
		&expr.Cmp{Op: op, Register: reg, Data: []byte(KeyLink(link))},
	}
}

// MatchLocal matches packets for an address of this host.
func MatchLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// MatchDNAT matches packets of connections whose destination a rule has changed.
func MatchDNAT() []expr.Any {
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	return matchConntrack(expr.CtKeySTATUS, statusDNAT)
}

// MatchEstablished matches packets of established connections, and related ones.
func MatchEstablished() []expr.Any {
	return matchConntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

func matchConntrack(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

// Masquerade replaces the source address by that of the link that the packet leaves by.
func Masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// Drop drops the packet.
func Drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// Accept accepts the packet. Base chains of a later priority still see it.
func Accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

// Return goes back to the calling chain.
func Return() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

// Jump evaluates another chain of the table.
func Jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// ForwardPort changes the destination of a packet to what a map of host ports has for it. The
// map's key is [address .] protocol . port, its value address . port.
func ForwardPort(set string, v4, byAddr bool) [][]expr.Any {
	next := uint32(reg32)
	words := uint32(4) // an address in 32-bit registers
	fam := uint32(unix.NFPROTO_IPV6)
	if v4 {
		words, fam = 1, unix.NFPROTO_IPV4
	}
	load := matchFamily(v4)
	if byAddr {
		load = append(load, LoadAddr(Destination, v4, next))
		next += words
	}
	load = append(load,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: reg32, DestRegister: reg32, IsDestRegSet: true, SetName: set},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: fam, RegAddrMin: reg32, RegProtoMin: reg32 + words, Specified: true},
	)
	return [][]expr.Any{load}
}

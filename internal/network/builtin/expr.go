package builtin

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The registers: a concatenation fills 32-bit ones in a row.
const (
	reg     = 1                 // the first 128-bit register
	reg32   = unix.NFT_REG32_00 // the same place, as 32-bit registers
	ifnameN = 16
)

// side is where an address stands in a packet.
type side int

const (
	source side = iota
	destination
)

// matchFamily matches one family's packets, in a table of both.
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

// loadAddr puts a packet's address into a register.
func loadAddr(s side, v4 bool, register uint32) expr.Any {
	offset, length := uint32(8), uint32(16)
	if v4 {
		offset, length = 12, 4
	}
	if s == destination {
		offset += length
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

// matchPrefix matches packets whose address is, or is not, in a prefix.
func matchPrefix(s side, p netip.Prefix, in bool) []expr.Any {
	op := expr.CmpOpNeq
	if in {
		op = expr.CmpOpEq
	}
	v4, bits := p.Addr().Is4(), p.Addr().BitLen()
	return append(matchFamily(v4),
		loadAddr(s, v4, reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(bits / 8), Mask: net.CIDRMask(p.Bits(), bits), Xor: make([]byte, bits/8)},
		&expr.Cmp{Op: op, Register: reg, Data: p.Masked().Addr().AsSlice()},
	)
}

// matchLink matches packets that come or leave by a link, or do not.
func matchLink(key expr.MetaKey, link string, equal bool) []expr.Any {
	op := expr.CmpOpNeq
	if equal {
		op = expr.CmpOpEq
	}
	name := make([]byte, ifnameN)
	copy(name, link)
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg},
		&expr.Cmp{Op: op, Register: reg, Data: name},
	}
}

// matchLocal matches packets for an address of this host.
func matchLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// matchDNAT matches connections that were sent elsewhere.
func matchDNAT() []expr.Any {
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	return matchConntrack(expr.CtKeySTATUS, statusDNAT)
}

// matchAnswers matches packets of connections that are known already.
func matchAnswers() []expr.Any {
	return matchConntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

func matchConntrack(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }
func drop() []expr.Any       { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }
func accept() []expr.Any     { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

func leave() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// forwardPort sends a packet where a map of host ports says. The map's key is
// [address .] protocol . port, its value address . port.
func forwardPort(set string, v4, byAddr bool) [][]expr.Any {
	next := uint32(reg32)
	words := uint32(4) // an address in 32-bit registers
	fam := uint32(unix.NFPROTO_IPV6)
	if v4 {
		words, fam = 1, unix.NFPROTO_IPV4
	}
	load := matchFamily(v4)
	if byAddr {
		load = append(load, loadAddr(destination, v4, next))
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

// rawAddr, rawProto and rawPort are the parts of a concatenation: each is padded
// to 32 bits.
func rawAddr(addr netip.Addr) string { return string(addr.AsSlice()) }

func rawProto(proto byte) string { return string([]byte{proto, 0, 0, 0}) }

func rawPort(port uint16) string {
	return string(binary.BigEndian.AppendUint16(nil, port)) + "\x00\x00"
}

package xtables

import (
	"strconv"
	"strings"

	"github.com/google/nftables/alignedbuff"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
)

// port matches the destination's port.
func (e *encoder) port(value string) bool {
	port, ok := portOf(value)
	if !ok || e.proto == 0 {
		return false
	}
	every := [2]uint16{0, 1<<16 - 1}
	one := [2]uint16{port, port}
	switch {
	case e.proto == unix.IPPROTO_SCTP:
		e.matches = append(e.matches, &expr.Match{Name: "sctp", Info: sctp(one)})
	case e.form == native:
		e.matches = append(e.matches, nftexpr.MatchPart(&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			[]byte{byte(port >> 8), byte(port)})...)
	case e.proto == unix.IPPROTO_TCP:
		e.matches = append(e.matches, &expr.Match{Name: "tcp", Info: &xt.Tcp{SrcPorts: every, DstPorts: one}})
	default:
		e.matches = append(e.matches, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: every, DstPorts: one}})
	}
	return true
}

func portOf(text string) (uint16, bool) {
	port, err := strconv.ParseUint(text, 10, 16)
	return uint16(port), err == nil
}

// sctp is struct xt_sctp_info for one port of the destination, and any chunks.
func sctp(ports [2]uint16) xt.InfoAny {
	const (
		chunks    = 256 + 4 // their map, and how to compare it
		flagInfos = 4       // XT_NUM_SCTP_FLAGS
		destPorts = 1 << 1  // XT_SCTP_DEST_PORTS
	)
	b := alignedbuff.New()
	for _, p := range []uint16{ports[0], ports[1], 0, 0} {
		b.PutUint16(p)
	}
	b.PutBytesAligned32(make([]byte, chunks), chunks)
	for range flagInfos {
		for _, field := range []byte{0xff, 0, 0} { // no chunk's
			b.PutUint8(field)
		}
	}
	for _, field := range []uint32{0, destPorts, 0} {
		b.PutUint32(field)
	}
	return unknown(&b)
}

// ports matches any of up to 15 ports of the destination.
func (e *encoder) ports(value string) bool {
	const (
		most        = 15
		destination = 1 // XT_MULTIPORT_DESTINATION
	)
	list := strings.Split(value, ",")
	if len(list) > most || e.proto == 0 {
		return false
	}
	// struct xt_multiport_v1
	b := alignedbuff.New()
	b.PutUint8(destination)
	b.PutUint8(uint8(len(list)))
	for _, text := range list {
		port, ok := portOf(text)
		if !ok {
			return false
		}
		b.PutUint16(port)
	}
	for range most - len(list) {
		b.PutUint16(0)
	}
	for range most + 1 { // which ports begin a range, and whether the match is inverted
		b.PutUint8(0)
	}
	e.matches = append(e.matches, &expr.Match{Name: "multiport", Rev: 1, Info: unknown(&b)})
	return true
}

// info is a struct of numbers.
func info(numbers ...uint32) xt.InfoAny {
	b := alignedbuff.New()
	for _, n := range numbers {
		b.PutUint32(n)
	}
	return unknown(&b)
}

// unknown is a struct that the library has no type for.
func unknown(b *alignedbuff.AlignedBuff) xt.InfoAny {
	u := xt.Unknown(b.Data())
	return &u
}

package nftexpr

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// These return the bytes of one part of a set's key. A key of several parts is their
// concatenation: each part is padded to a multiple of 32 bits.

// KeyAddr is an address: 4 bytes for IPv4, 16 for IPv6.
func KeyAddr(addr netip.Addr) string { return string(addr.AsSlice()) }

// KeyProto is an IP protocol, such as unix.IPPROTO_TCP.
func KeyProto(proto byte) string { return string([]byte{proto, 0, 0, 0}) }

// KeyPort is a port of TCP, UDP or SCTP.
func KeyPort(port uint16) string {
	return string(binary.BigEndian.AppendUint16(nil, port)) + "\x00\x00"
}

// KeyLink is the name of a link.
func KeyLink(name string) string {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return string(key)
}

// KeyMAC is a link address of 6 bytes.
func KeyMAC(mac []byte) string { return string(mac) + "\x00\x00" }

package linkmsg

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysnet"
)

// Index returns the index of the link that an answer to Get describes.
func Index(answer []byte) (int, error) {
	if len(answer) < unix.SizeofIfInfomsg {
		return 0, fmt.Errorf("the kernel described a link in %d bytes", len(answer))
	}
	return int(nl.DeserializeIfInfomsg(answer).Index), nil
}

// SeenUp reports whether the kernel has noticed that a link came up, by an answer to Get. A worker
// of the kernel does; until then the link's queue drops everything.
func SeenUp(answer []byte) bool {
	const operUp = 6 // IF_OPER_UP
	oper := sysnet.Attribute(linkAttributes(answer), unix.IFLA_OPERSTATE)
	return len(oper) == 1 && oper[0] == operUp
}

// Forwards reports whether the bridge forwards for a port that is up, by an answer to Get. The
// state of the port alone is no proof: the bridge sets it before the worker has noticed the link.
func Forwards(answer []byte) bool {
	const (
		portState  = 1 // IFLA_BRPORT_STATE
		forwarding = 3 // BR_STATE_FORWARDING
	)
	attrs := linkAttributes(answer)
	for _, kind := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA} {
		attrs = sysnet.Attribute(attrs, kind)
	}
	state := sysnet.Attribute(attrs, portState)
	return SeenUp(answer) && len(state) == 1 && state[0] == forwarding
}

// Port is a port of a bridge.
type Port struct {
	Name, Alias string
	// Bridge is the index of the bridge's link.
	Bridge int
	// Hairpin is true when the bridge sends frames out by the port that they came in by.
	Hairpin bool
}

// ReadPort reads a message of the answer to Ports. ok is false for a link that is on no bridge: a kernel may
// ignore the filter.
func ReadPort(message []byte) (p Port, ok bool) {
	attrs, err := nl.ParseRouteAttr(linkAttributes(message))
	if err != nil {
		return p, false
	}
	for _, a := range attrs {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			p.Name = text(a.Value)
		case unix.IFLA_IFALIAS:
			p.Alias = text(a.Value)
		case unix.IFLA_MASTER:
			if len(a.Value) == 4 {
				p.Bridge = int(binary.NativeEndian.Uint32(a.Value))
			}
		case unix.IFLA_LINKINFO:
			mode := sysnet.Attribute(sysnet.Attribute(a.Value, nl.IFLA_INFO_SLAVE_DATA), nl.IFLA_BRPORT_MODE)
			p.Hairpin = len(mode) == 1 && mode[0] != 0
		}
	}
	return p, p.Bridge != 0
}

// text is a string of the kernel.
func text(value []byte) string { return string(bytes.TrimRight(value, "\x00")) }

// Announces reports whether an event says that the kernel uses an address from now on.
func Announces(kind uint16, payload []byte, addr netip.Addr) bool {
	return kind == unix.RTM_NEWADDR && len(payload) > unix.SizeofIfAddrmsg &&
		bytes.Equal(sysnet.Attribute(payload[unix.SizeofIfAddrmsg:], unix.IFA_ADDRESS), addr.AsSlice())
}

// linkAttributes is what follows the header of an answer to Get.
func linkAttributes(answer []byte) []byte { return answer[min(len(answer), unix.SizeofIfInfomsg):] }

// Package policy compiles NetworkPolicy objects (networking.k8s.io/v1) into the rules that one node
// enforces. It is pure: it knows objects and addresses, and neither an API server nor a kernel.
//
// A node enforces the ingress of its own pods and the egress of its own pods. A connection between
// two pods needs the consent of both: of the node of its source for egress, and of the node of its
// destination for ingress.
package policy

import (
	"net/netip"
	"slices"
)

// Protocol is a number of IP: unix.IPPROTO_TCP, unix.IPPROTO_UDP or unix.IPPROTO_SCTP for rules
// with ports, and any number in a connection.
type Protocol uint8

// Direction is the side of a pod that a policy isolates.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// String is "ingress" or "egress".
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// Model is what a node enforces.
type Model struct {
	// Isolated has the addresses of the node's pods that a policy isolates, for each direction. The
	// value has the names of the grants of all policies that select the pod, sorted. An address
	// without grants may have no connection in that direction. An address that is not here is open.
	Isolated [2]map[netip.Addr][]string
	// Grants are by name.
	Grants map[string]*Grant
}

// Grant is what one policy allows in one direction.
type Grant struct {
	// Name is unique among the grants of a model. Two grants of the same name, also in different
	// models, differ at most in the addresses of pods (Rule.Pods, NamedPort.Pods): a policy with other
	// blocks, ports or rules has a grant of another name.
	Name string
	// Policy is NAMESPACE/NAME.
	Policy    string
	Direction Direction
	// Rules allow a connection if one of them does.
	Rules []Rule
}

// Rule allows connections whose other side is a peer, to a port.
type Rule struct {
	// AnyPeer: every address is a peer. Otherwise the peers are Pods and Blocks.
	AnyPeer bool
	// Pods are addresses of pods, sorted.
	Pods []netip.Addr
	// Blocks are ranges of addresses, sorted, without overlaps.
	Blocks []Range
	// AnyPort: every protocol and port. Otherwise those of Ports and Named.
	AnyPort bool
	// Ports are sorted, without overlaps.
	Ports []PortRange
	// Named are the ports that pods have under a name, sorted.
	Named []NamedPort
}

// Range is a range of addresses of one family.
type Range struct{ First, Last netip.Addr }

// PortRange is a range of ports of one protocol.
type PortRange struct {
	Proto       Protocol
	First, Last uint16
}

// NamedPort is a port of some pods: a name can mean other ports at other pods.
type NamedPort struct {
	Proto Protocol
	Port  uint16
	// Pods are addresses of the pods, sorted.
	Pods []netip.Addr
}

// Conn is a connection by its first packet, behind the change of its destination by a service and
// before a change of its source.
type Conn struct {
	Source, Destination netip.Addr
	Proto               Protocol
	// Port is the destination's, 0 if the protocol has no ports.
	Port uint16
}

// Allows reports whether the node of the model lets a connection pass. It does not cover connections of
// the node itself, which always pass.
func (m *Model) Allows(c Conn) bool {
	if c.Source == c.Destination {
		return true // a pod cannot be isolated from itself
	}
	return m.allows(Egress, c.Source, c) && m.allows(Ingress, c.Destination, c)
}

func (m *Model) allows(d Direction, pod netip.Addr, c Conn) bool {
	grants, isolated := m.Isolated[d][pod]
	if !isolated {
		return true
	}
	return slices.ContainsFunc(grants, func(name string) bool { return m.Grants[name].allows(c) })
}

func (g *Grant) allows(c Conn) bool {
	peer := c.Source
	if g.Direction == Egress {
		peer = c.Destination
	}
	return slices.ContainsFunc(g.Rules, func(r Rule) bool { return r.hasPeer(peer) && r.hasPort(c) })
}

func (r Rule) hasPeer(addr netip.Addr) bool {
	if r.AnyPeer {
		return true
	}
	return hasAddr(r.Pods, addr) || inRanges(r.Blocks, addr)
}

// hasAddr looks in sorted addresses.
func hasAddr(sorted []netip.Addr, addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(sorted, addr, netip.Addr.Compare)
	return found
}

func (r Rule) hasPort(c Conn) bool {
	if r.AnyPort {
		return true
	}
	return slices.ContainsFunc(r.Ports, func(p PortRange) bool { return p.Proto == c.Proto && p.First <= c.Port && c.Port <= p.Last }) ||
		slices.ContainsFunc(r.Named, func(n NamedPort) bool {
			return n.Proto == c.Proto && n.Port == c.Port && hasAddr(n.Pods, c.Destination)
		})
}

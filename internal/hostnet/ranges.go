package hostnet

import (
	"encoding/json"
	"net/netip"
)

// Range is a range of addresses that the IPAM plugin host-local gives out to pods.
type Range struct {
	Subnet netip.Prefix
	Own    Own
}

// String is the range as its configuration has it.
func (r Range) String() string { return r.Subnet.String() }

// plugin is what matters here of a plugin's configuration.
type plugin struct {
	Type, Bridge     string
	IsGateway        bool
	IsDefaultGateway bool
	IPAM             ipam
}

type ipam struct {
	Type string
	rangeConf
	Ranges [][]rangeConf
}

type rangeConf struct{ Subnet, RangeStart, RangeEnd, Gateway string }

// defaultBridge is the name that the plugin bridge gives its bridge.
const defaultBridge = "cni0"

// RangesOf returns the ranges of host-local in a CNI configuration, a list or one plugin, with what of the host belongs to
// the network itself. It returns none of a configuration that it cannot read.
func RangesOf(conf []byte) []Range {
	var list struct {
		plugin
		Plugins []plugin
	}
	if json.Unmarshal(conf, &list) != nil {
		return nil
	}
	var all []Range
	for _, p := range append([]plugin{list.plugin}, list.Plugins...) {
		if p.IPAM.Type != "host-local" {
			continue
		}
		confs := []rangeConf{p.IPAM.rangeConf}
		for _, set := range p.IPAM.Ranges {
			confs = append(confs, set...)
		}
		for _, c := range confs {
			if r, ok := p.rangeOf(c); ok {
				all = append(all, r)
			}
		}
	}
	return all
}

// rangeOf is one range with the links and addresses of the network of p.
func (p plugin) rangeOf(c rangeConf) (Range, bool) {
	subnet, err := netip.ParsePrefix(c.Subnet)
	if err != nil {
		return Range{}, false
	}
	r := Range{Subnet: subnet.Masked()}
	gateway, err := netip.ParseAddr(c.Gateway)
	if err != nil {
		gateway = r.Subnet.Addr().Next()
	}
	routed := false
	switch p.Type {
	case "bridge":
		bridge := p.Bridge
		if bridge == "" {
			bridge = defaultBridge
		}
		r.Own.Links = []string{bridge}
		routed = p.IsGateway || p.IsDefaultGateway
	case "ptp":
		r.Own.Gateways, routed = []netip.Addr{gateway}, true
	}
	if routed {
		return r, true
	}
	// Pods share the subnet with the host's own network. host-local gives out all but the first address, or those from
	// rangeStart to rangeEnd, and never the gateway.
	r.Own.First, r.Own.Last = r.Subnet.Addr().Next(), last(r.Subnet)
	if first, err := netip.ParseAddr(c.RangeStart); err == nil {
		r.Own.First = first
	}
	if end, err := netip.ParseAddr(c.RangeEnd); err == nil {
		r.Own.Last = end
	}
	r.Own.Never = gateway
	return r, true
}

// last is the last address of a subnet.
func last(subnet netip.Prefix) netip.Addr {
	bytes := subnet.Addr().AsSlice()
	for bit := subnet.Bits(); bit < subnet.Addr().BitLen(); bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

package builtin

import (
	"context"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A pod that may open raw sockets writes any source into its packets. The frames of a
// pod's link are checked where they enter the bridge, in a table of family bridge: they
// pass with the link's own MAC and the pod's own addresses, in ARP and neighbour
// discovery too, and all others are dropped. As with host ports, a pod is a few elements
// of sets and no rule.
const (
	setGuarded = "guarded" // link
	setMACs    = "macs"    // link . MAC
	setAddrs4  = "addrs4"  // link . address
	setAddrs6  = "addrs6"
)

// Where the headers have what is checked, from the start of each header.
const (
	ethSource, ethType     = 6, 12
	arpSenderMAC, arpSpoke = 8, 14
	ip6Destination         = 24
	ndTarget               = 8
)

// Types of ICMPv6 messages of neighbour discovery.
const (
	icmpRouterAdvertisement    = 134
	icmpNeighbourAdvertisement = 136
	icmpRedirect               = 137
)

// probeFrames reports whether the kernel has tables of family bridge.
func (t *table) probeFrames() bool {
	frames := &nftables.Table{Name: t.name, Family: nftables.TableFamilyBridge}
	t.conn.AddTable(frames)
	t.conn.DelTable(frames)
	if t.conn.Flush() != nil {
		return false
	}
	t.frames = frames
	return true
}

// addFrameSets queues the sets.
func (t *table) addFrameSets() error {
	link := nftables.TypeIFName
	for name, types := range map[string][]nftables.SetDatatype{
		setGuarded: {link}, setMACs: {link, nftables.TypeEtherAddr},
		setAddrs4: {link, nftables.TypeIPAddr}, setAddrs6: {link, nftables.TypeIP6Addr},
	} {
		// nft prints names of links only where it knows their bytes for the host's order.
		set := &nftables.Set{Table: t.frames, Name: name, KeyType: link, KeyByteOrder: binaryutil.NativeEndian}
		if len(types) > 1 {
			key, err := nftables.ConcatSetType(types...)
			if err != nil {
				return err
			}
			set.KeyType, set.Concatenation = key, true
		}
		if err := t.conn.AddSet(set, nil); err != nil {
			return err
		}
		t.sets[name] = set
	}
	return nil
}

// addFrameRules queues chains and rules.
func (t *table) addFrameRules() {
	checked := t.chainIn(t.frames, "checked", nil, nil, "")
	frames := t.chainIn(t.frames, "frames", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, nftables.ChainTypeFilter)
	t.rule(frames, ofLink(setGuarded, nil, true), jump(checked.Name))

	t.rule(checked, ofLink(setMACs, payloadOf(expr.PayloadBaseLLHeader, ethSource, 6), false), drop())
	arp, ip4, ip6 := ofType(unix.ETH_P_ARP), ofType(unix.ETH_P_IP), ofType(unix.ETH_P_IPV6)
	// Who asks whether an address is free has none yet, and nobody learns from it.
	t.rule(checked, arp, equals(payloadOf(expr.PayloadBaseNetworkHeader, arpSpoke, 4), make([]byte, 4)), accept())
	t.rule(checked, arp, ofLink(setMACs, payloadOf(expr.PayloadBaseNetworkHeader, arpSenderMAC, 6), false), drop())
	t.rule(checked, arp, ofLink(setAddrs4, payloadOf(expr.PayloadBaseNetworkHeader, arpSpoke, 4), true), accept())
	t.rule(checked, ip4, ofLink(setAddrs4, payloadOf(expr.PayloadBaseNetworkHeader, 12, 4), true), accept())

	for _, kind := range []byte{icmpRouterAdvertisement, icmpRedirect} {
		t.rule(checked, ip6, ofICMP(kind), drop())
	}
	t.rule(checked, ip6, ofICMP(icmpNeighbourAdvertisement),
		ofLink(setAddrs6, payloadOf(expr.PayloadBaseTransportHeader, ndTarget, 16), false), drop())
	t.rule(checked, ip6, ofLink(setAddrs6, payloadOf(expr.PayloadBaseNetworkHeader, 8, 16), true), accept())
	// Detection of duplicates, and the groups of an address that is not usable yet.
	t.rule(checked, ip6, equals(payloadOf(expr.PayloadBaseNetworkHeader, 8, 16), make([]byte, 16)),
		equals(payloadOf(expr.PayloadBaseNetworkHeader, ip6Destination, 1), []byte{0xff}), accept())
	t.rule(checked, drop())
}

// frameElements are the set entries of a record, none when it is not checked.
func (t *table) frameElements(rec *record) []element {
	if t.frames == nil || !rec.Checked {
		return nil
	}
	name := make([]byte, ifnameN)
	copy(name, rec.Link)
	link, mac := string(name), macOf(rec.Addrs[0].Addr())
	all := []element{
		{set: setGuarded, key: link},
		{set: setMACs, key: link + string(mac) + "\x00\x00"},
		{set: setAddrs6, key: link + rawAddr(linkLocal(mac))},
	}
	for _, p := range rec.Addrs {
		set := setAddrs6
		if p.Addr().Is4() {
			set = setAddrs4
		}
		all = append(all, element{set: set, key: link + rawAddr(p.Addr())})
	}
	return all
}

// guard checks the frames of a record's link, which is not there yet.
func (n *Network) guard(ctx context.Context, rec *record) error {
	err := n.table.change(n.table.frameElements(rec), nil)
	if err == nil {
		return nil
	}
	return n.rebuild(ctx, err)
}

// unguard forgets a link that is gone. Entries that cannot be removed now are missing in
// the next look at the table, which makes it again without them.
func (n *Network) unguard(rec *record) {
	if err := n.table.change(nil, n.table.present(n.table.frameElements(rec))); err != nil {
		n.log.Debug("an nftables table of the built-in network was changed by others", "table", n.table.name, "error", err)
	}
}

// linkLocal is the IPv6 address that the kernel derives from a MAC.
func linkLocal(mac []byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// payloadOf loads a part of the frame into the registers behind the link's name.
func payloadOf(base expr.PayloadBase, offset, length uint32) *expr.Payload {
	return &expr.Payload{DestRegister: reg32 + ifnameN/4, Base: base, Offset: offset, Len: length}
}

// ofLink matches frames whose link, with a part of the frame if there is one, is in a set
// or is not.
func ofLink(set string, part *expr.Payload, in bool) []expr.Any {
	load := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg32}}
	if part != nil {
		load = append(load, part)
	}
	return append(load, &expr.Lookup{SourceRegister: reg32, SetName: set, Invert: !in})
}

// equals matches a part of the frame.
func equals(part *expr.Payload, want []byte) []expr.Any {
	return []expr.Any{part, &expr.Cmp{Op: expr.CmpOpEq, Register: part.DestRegister, Data: want}}
}

// ofType matches the frame's own type: that of a tag where it has one.
func ofType(kind uint16) []expr.Any {
	return equals(payloadOf(expr.PayloadBaseLLHeader, ethType, 2), []byte{byte(kind >> 8), byte(kind)})
}

// ofICMP matches a type of ICMPv6 messages, behind extension headers too.
func ofICMP(kind byte) []expr.Any {
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg32, Data: []byte{unix.IPPROTO_ICMPV6}},
	}, equals(payloadOf(expr.PayloadBaseTransportHeader, 0, 1), []byte{kind})...)
}

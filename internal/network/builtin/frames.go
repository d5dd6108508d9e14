package builtin

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
)

// A pod that may open raw sockets can write any source into its packets. A table of family
// bridge checks the frames of a pod's link where they enter the bridge: frames with the
// link's own MAC and the pod's own addresses pass, also in ARP and neighbour discovery, and
// all others are dropped. As with host ports, a pod adds elements to sets, and no rules.
const (
	setGuarded = "guarded" // link
	setMACs    = "macs"    // link . MAC
	setAddrs4  = "addrs4"  // link . address
	setAddrs6  = "addrs6"
)

// Where the headers have what is checked, from the start of each header.
const (
	ethSource              = 6
	arpSenderMAC, arpSpoke = 8, 14
	ip6Destination         = 24
	ndTarget               = 8
)

// mldReports is the address that reports of MLD version 2 are sent to, and nothing else.
const mldReports = "ff02::16"

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
	t.rule(frames, nftexpr.MatchLinkInSet(setGuarded, nil, true), nftexpr.Jump(checked.Name))

	t.rule(checked, nftexpr.MatchLinkInSet(setMACs, nftexpr.Part(expr.PayloadBaseLLHeader, ethSource, 6), false), nftexpr.Drop())
	// The bridge does not snoop, so nothing reads a pod's reports of its multicast groups. It would
	// send each to all pods: several for every pod that starts.
	t.rule(checked, nftexpr.MatchEtherType(unix.ETH_P_IPV6),
		nftexpr.MatchPart(nftexpr.Part(expr.PayloadBaseNetworkHeader, ip6Destination, 16), netip.MustParseAddr(mldReports).AsSlice()), nftexpr.Drop())
	arp, ip4, ip6 := nftexpr.MatchEtherType(unix.ETH_P_ARP), nftexpr.MatchEtherType(unix.ETH_P_IP), nftexpr.MatchEtherType(unix.ETH_P_IPV6)
	// A probe for a free address has no source address, and changes no neighbour table.
	t.rule(checked, arp, nftexpr.MatchPart(nftexpr.Part(expr.PayloadBaseNetworkHeader, arpSpoke, 4), make([]byte, 4)), nftexpr.Accept())
	t.rule(checked, arp, nftexpr.MatchLinkInSet(setMACs, nftexpr.Part(expr.PayloadBaseNetworkHeader, arpSenderMAC, 6), false), nftexpr.Drop())
	t.rule(checked, arp, nftexpr.MatchLinkInSet(setAddrs4, nftexpr.Part(expr.PayloadBaseNetworkHeader, arpSpoke, 4), true), nftexpr.Accept())
	t.rule(checked, ip4, nftexpr.MatchLinkInSet(setAddrs4, nftexpr.Part(expr.PayloadBaseNetworkHeader, 12, 4), true), nftexpr.Accept())

	for _, kind := range []byte{icmpRouterAdvertisement, icmpRedirect} {
		t.rule(checked, ip6, nftexpr.MatchICMPv6(kind), nftexpr.Drop())
	}
	t.rule(checked, ip6, nftexpr.MatchICMPv6(icmpNeighbourAdvertisement),
		nftexpr.MatchLinkInSet(setAddrs6, nftexpr.Part(expr.PayloadBaseTransportHeader, ndTarget, 16), false), nftexpr.Drop())
	t.rule(checked, ip6, nftexpr.MatchLinkInSet(setAddrs6, nftexpr.Part(expr.PayloadBaseNetworkHeader, 8, 16), true), nftexpr.Accept())
	// Detection of duplicates, and the groups of an address that is not usable yet.
	t.rule(checked, ip6, nftexpr.MatchPart(nftexpr.Part(expr.PayloadBaseNetworkHeader, 8, 16), make([]byte, 16)),
		nftexpr.MatchPart(nftexpr.Part(expr.PayloadBaseNetworkHeader, ip6Destination, 1), []byte{0xff}), nftexpr.Accept())
	t.rule(checked, nftexpr.Drop())
}

// addCopyRules queues the rules that drop copies of a promiscuous bridge: what the host sends
// by the bridge, and what has a pod as its source. The host itself and its masqueraded connections have
// the address of the bridge.
func (t *table) addCopyRules(subnets []netip.Prefix) {
	if !t.promiscuous {
		return
	}
	copies := t.chainIn(t.frames, "copies", nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainTypeFilter)
	fromHost := nftexpr.MatchPart(nftexpr.Part(expr.PayloadBaseLLHeader, ethSource, 6), t.bridgeMAC)
	for _, subnet := range subnets {
		source, kind := nftexpr.Part(expr.PayloadBaseNetworkHeader, 8, 16), uint16(unix.ETH_P_IPV6)
		if subnet.Addr().Is4() {
			source, kind = nftexpr.Part(expr.PayloadBaseNetworkHeader, 12, 4), unix.ETH_P_IP
		}
		t.rule(copies, fromHost, nftexpr.MatchEtherType(kind), nftexpr.MatchPart(source, at(subnet, 1).AsSlice()), nftexpr.Accept())
		t.rule(copies, fromHost, nftexpr.MatchEtherType(kind), nftexpr.MatchPartPrefix(source, subnet), nftexpr.Drop())
	}
}

// frameElements are the set entries of a record, none when it is not checked.
func (t *table) frameElements(rec *record) []element {
	if t.frames == nil || !rec.Checked {
		return nil
	}
	link, mac := nftexpr.KeyLink(rec.Link), macOf(rec.Addrs[0].Addr())
	all := []element{
		{set: setGuarded, key: link},
		{set: setMACs, key: link + nftexpr.KeyMAC(mac)},
		{set: setAddrs6, key: link + nftexpr.KeyAddr(linkLocal(mac))},
	}
	for _, p := range rec.Addrs {
		set := setAddrs6
		if p.Addr().Is4() {
			set = setAddrs4
		}
		all = append(all, element{set: set, key: link + nftexpr.KeyAddr(p.Addr())})
	}
	return all
}

// guard checks the frames of a record's link, which is not there yet.
func (n *Network) guard(rec *record) error {
	err := n.table.change(n.table.frameElements(rec), nil)
	if err == nil {
		return nil
	}
	return n.rebuild(err)
}

// unguard removes the checks of a link that is gone. If that fails, the next check of the table
// finds a difference, and creates the table again without them.
func (n *Network) unguard(rec *record) {
	if err := n.table.change(nil, n.table.present(n.table.frameElements(rec))); err != nil {
		n.log.Debug("cannot remove entries from an nftables table of the built-in network",
			"table", n.table.name, "error", err)
	}
}

// linkLocal is the IPv6 address that the kernel derives from a MAC.
func linkLocal(mac []byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

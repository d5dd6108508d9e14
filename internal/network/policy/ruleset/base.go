package ruleset

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
	"github.com/berthrun/berth/internal/network/policy"
)

// The priorities of the base chains: what no policy can allow is dropped first, then egress is decided,
// and all before NAT and IPVS (100).
const (
	strayPriority   = 89
	egressPriority  = 90
	ingressPriority = 91
)

// The names of the chains for packets that no policy can allow.
const (
	straysChain = "strays"
	manyChain   = "strays/many"
)

// base is a chain of a hook.
type base struct {
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    [][]expr.Any
}

// basesFor returns the base chains by name. A connection has to pass those of both directions. The chains
// for strays exist while they are needed.
func basesFor(m *policy.Model, v4 bool) map[string]base {
	all := map[string]base{}
	for _, w := range ways() {
		hook := nftables.ChainHookPostrouting
		if w.reply {
			hook = nftables.ChainHookForward
		}
		for d, priority := range map[policy.Direction]nftables.ChainPriority{policy.Egress: egressPriority, policy.Ingress: ingressPriority} {
			name := w.name(d.String())
			all[name] = base{hook, priority, w.rules(d, v4)}
		}
	}
	// Both families count: pods of a cluster without IPv6 have link-local addresses all the same.
	ingress := len(m.Isolated[policy.Ingress]) > 0
	if ingress || len(m.Isolated[policy.Egress]) > 0 {
		all[straysChain] = base{nftables.ChainHookForward, strayPriority, strays(v4)}
	}
	if ingress {
		all[manyChain] = base{nftables.ChainHookForward, strayPriority, toMany(v4)}
	}
	return all
}

// rules are those of the packets that go this way: packets of isolated pods jump to the chain that
// decides on them.
func (w way) rules(d policy.Direction, v4 bool) [][]expr.Any {
	isolated := w.isolatedName(d)
	dispatch := join(nftexpr.MatchAddrInSet(w.isolated(d), v4, isolated), nftexpr.Jump(isolated))
	rules := [][]expr.Any{
		join(nftexpr.MatchErrors(v4), nftexpr.Accept()),
		join(nftexpr.MatchReply(w.reply), dispatch),
	}
	if w.reply {
		return rules
	}
	rules = append(rules, join(nftexpr.MatchInvalid(), dispatch))
	rules = append(rules, acceptDiscovery(v4)...)
	return append(rules, join(nftexpr.MatchUntracked(), dispatch))
}

// acceptDiscovery accepts what IPv6 needs on every link. Conntrack does not follow these messages.
func acceptDiscovery(v4 bool) [][]expr.Any {
	if v4 {
		return nil
	}
	rules := [][]expr.Any{join(nftexpr.MatchNeighbourDiscovery(), nftexpr.Accept())}
	for _, match := range nftexpr.MatchMulticastListeners() {
		rules = append(rules, join(match, nftexpr.Accept()))
	}
	return rules
}

// strays drop forwarded packets whose sender no policy can name. What the node itself sends is not
// forwarded, and passes.
func strays(v4 bool) [][]expr.Any {
	rules := acceptDiscovery(v4)
	if !v4 {
		linkLocal := netip.MustParsePrefix("fe80::/10")
		for _, side := range []nftexpr.Side{nftexpr.Source, nftexpr.Destination} {
			rules = append(rules, join(nftexpr.MatchAddrPrefix(side, linkLocal, true), nftexpr.Drop()))
		}
	}
	// A pod that sends with an address of the node would have the node's rights. An answer has none.
	return append(rules,
		join(nftexpr.MatchReply(true), nftexpr.Accept()),
		join(nftexpr.MatchFromHost(), nftexpr.Drop()),
	)
}

// toMany drop forwarded packets to more than one receiver: the isolated pods would be among them.
func toMany(v4 bool) [][]expr.Any {
	rules := acceptDiscovery(v4)
	matches := append(nftexpr.MatchFramesToMany(), nftexpr.MatchMulticast(v4))
	if v4 {
		matches = append(matches, nftexpr.MatchBroadcast())
	}
	for _, match := range matches {
		rules = append(rules, join(match, nftexpr.Drop()))
	}
	return rules
}

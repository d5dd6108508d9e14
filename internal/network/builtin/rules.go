package builtin

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
)

// addSets queues the maps.
func (t *table) addSets() error {
	t.sets = map[string]*nftables.Set{}
	for name, types := range mapTypes() {
		key, err := nftables.ConcatSetType(types.key...)
		if err != nil {
			return err
		}
		val, err := nftables.ConcatSetType(types.val...)
		if err != nil {
			return err
		}
		set := &nftables.Set{Table: t.table, Name: name, IsMap: true, Concatenation: true, KeyType: key, DataType: val}
		if err := t.conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("cannot make nftables map %s: %w", name, err)
		}
		t.sets[name] = set
	}
	return nil
}

type mapType struct{ key, val []nftables.SetDatatype }

func mapTypes() map[string]mapType {
	proto, port := nftables.TypeInetProto, nftables.TypeInetService
	val4 := []nftables.SetDatatype{nftables.TypeIPAddr, port}
	val6 := []nftables.SetDatatype{nftables.TypeIP6Addr, port}
	return map[string]mapType{
		mapAny4:  {[]nftables.SetDatatype{proto, port}, val4},
		mapAny6:  {[]nftables.SetDatatype{proto, port}, val6},
		mapAddr4: {[]nftables.SetDatatype{nftables.TypeIPAddr, proto, port}, val4},
		mapAddr6: {[]nftables.SetDatatype{nftables.TypeIP6Addr, proto, port}, val6},
	}
}

// addRules queues chains and rules and counts them.
func (t *table) addRules(subnets []netip.Prefix) {
	t.rules, t.chains = map[string]int{}, map[string]*nftables.Chain{}
	ports := t.chain("hostports", nil, nil, "")
	for _, lookup := range []struct {
		set    string
		v4     bool
		byAddr bool
	}{{mapAddr4, true, true}, {mapAny4, true, false}, {mapAddr6, false, true}, {mapAny6, false, false}} {
		t.rule(ports, nftexpr.ForwardPort(lookup.set, lookup.v4, lookup.byAddr)...)
	}
	// Only packets for this host: a forwarded packet has another destination, whatever its
	// port.
	pre := t.chain("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT)
	t.rule(pre, nftexpr.MatchLocal(), nftexpr.Jump(ports.Name))
	out := t.chain("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT)
	// The kernel carries nothing from ::1 to another link. Refused at once, a
	// client goes on to 127.0.0.1; sent to the pod, it would wait for an answer.
	t.rule(out, nftexpr.MatchPrefix(nftexpr.Destination, netip.MustParsePrefix("::1/128"), true), nftexpr.Return())
	t.rule(out, nftexpr.MatchLocal(), nftexpr.Jump(ports.Name))
	post := t.chain("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT)
	for _, s := range subnets {
		// Pods of other nodes see the pod's own address.
		for _, c := range t.cluster {
			if c.Addr().Is4() == s.Addr().Is4() {
				t.rule(post, nftexpr.MatchPrefix(nftexpr.Source, s, true), nftexpr.MatchPrefix(nftexpr.Destination, c, true), t.onBridge(expr.MetaKeyOIFNAME, false), nftexpr.Return())
			}
		}
		// Pods that leave the host get its address as source. Traffic that stays on the bridge
		// is excluded: there pods keep their own addresses.
		t.rule(post, nftexpr.MatchPrefix(nftexpr.Source, s, true), nftexpr.MatchPrefix(nftexpr.Destination, s, false), t.onBridge(expr.MetaKeyOIFNAME, false), nftexpr.Masquerade())
		// A pod that asks for a host port and is sent to its own bridge must be
		// answered through the host.
		t.rule(post, nftexpr.MatchPrefix(nftexpr.Source, s, true), nftexpr.MatchPrefix(nftexpr.Destination, s, true), nftexpr.MatchDNAT(), nftexpr.Masquerade())
	}
	// The host itself, through its loopback address.
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	t.rule(post, nftexpr.MatchPrefix(nftexpr.Source, loopback, true), t.onBridge(expr.MetaKeyOIFNAME, true), nftexpr.Masquerade())
	// route_localnet opens 127.0.0.0/8 to the bridge. Only answers may use it, and those have
	// the address of the bridge at this point.
	raw := t.chain("guard", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, nftables.ChainTypeFilter)
	t.rule(raw, t.onBridge(expr.MetaKeyIIFNAME, true), nftexpr.MatchPrefix(nftexpr.Destination, loopback, true), nftexpr.Drop())
	t.rule(raw, t.onBridge(expr.MetaKeyIIFNAME, true), nftexpr.MatchPrefix(nftexpr.Source, loopback, true), nftexpr.Drop())
}

func (t *table) chain(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority, kind nftables.ChainType) *nftables.Chain {
	return t.chainIn(t.table, name, hook, priority, kind)
}

func (t *table) chainIn(in *nftables.Table, name string, hook *nftables.ChainHook, priority *nftables.ChainPriority, kind nftables.ChainType) *nftables.Chain {
	t.rules[name] = 0
	t.chains[name] = t.conn.AddChain(&nftables.Chain{Name: name, Table: in, Hooknum: hook, Priority: priority, Type: kind})
	return t.chains[name]
}

func (t *table) rule(chain *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	t.rules[chain.Name]++
	t.conn.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: all})
}

func (t *table) onBridge(key expr.MetaKey, equal bool) []expr.Any {
	return nftexpr.MatchLink(key, t.bridge, equal)
}

package ruleset

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berthrun/berth/internal/network/builtin/nftexpr"
	"github.com/berthrun/berth/internal/network/policy"
)

// kind is what the elements of a set are.
type kind int

const (
	verdicts kind = iota // map: address -> chain
	addrs                // address
	blocks               // ranges of addresses; the value is the last one
	pairs                // source . destination
)

// set is the content of a set: keys, and values where the kind has some.
type set struct {
	kind     kind
	elements map[string]string
}

// contents is the table of one family. A chain, and a set of ranges, never change under one name: what
// differs has another name. Sets of addresses change by element.
type contents struct {
	v4     bool
	bases  map[string]base
	sets   map[string]*set
	chains map[string][][]expr.Any
}

// selfSet has each isolated pod beside itself.
const selfSet = "self"

// way is a direction of packets: that of a connection's first packet, or that of the answers.
type way struct {
	reply bool
	// client and server are the sides of a packet on which the connection's client and server are.
	client, server nftexpr.Side
}

func ways() []way {
	return []way{{false, nftexpr.Source, nftexpr.Destination}, {true, nftexpr.Destination, nftexpr.Source}}
}

// name is the name of a chain or map for packets that go this way.
func (w way) name(name string) string {
	if w.reply {
		return name + "/reply"
	}
	return name
}

// isolated is the side of a packet on which the pod is that a policy isolates.
func (w way) isolated(d policy.Direction) nftexpr.Side {
	if d == policy.Egress {
		return w.client
	}
	return w.server
}

// isolatedName is the name of the set of the isolated pods' addresses, and of the chain that decides on
// their packets.
func (w way) isolatedName(d policy.Direction) string { return w.name(d.String()) + "/isolated" }

// peer is the other side.
func (w way) peer(d policy.Direction) nftexpr.Side {
	if d == policy.Egress {
		return w.server
	}
	return w.client
}

// contentsOf translates a model for one family.
func contentsOf(m *policy.Model, v4 bool) *contents {
	c := &contents{v4: v4, bases: basesFor(m, v4), sets: map[string]*set{}, chains: map[string][][]expr.Any{}}
	self := c.set(selfSet, pairs)
	for _, g := range m.Grants {
		for _, w := range ways() {
			c.chains[w.name(g.Name)] = c.grant(g, w)
		}
	}
	for i, isolated := range m.Isolated {
		d := policy.Direction(i)
		for _, w := range ways() {
			dispatch := c.set(w.name(d.String()), verdicts)
			known := c.set(w.isolatedName(d), addrs)
			for addr, grants := range isolated {
				if addr.Is4() == v4 {
					key := nftexpr.KeyAddr(addr)
					dispatch.elements[key] = c.class(d, w, grants)
					known.elements[key] = ""
					self.elements[key+key] = ""
				}
			}
			// A chain of a class is empty for packets from before the transaction that adds it, and
			// returns.
			c.chains[w.isolatedName(d)] = [][]expr.Any{
				nftexpr.DispatchAddr(w.isolated(d), v4, w.name(d.String())),
				nftexpr.Drop(),
			}
		}
	}
	return c
}

// set adds an empty set.
func (c *contents) set(name string, k kind) *set {
	c.sets[name] = &set{kind: k, elements: map[string]string{}}
	return c.sets[name]
}

// class returns the chain of all pods with the same grants. It accepts what one of them allows, and
// drops the rest.
func (c *contents) class(d policy.Direction, w way, grants []string) string {
	sum := sha256.Sum256([]byte(strings.Join(grants, "\n")))
	name := w.name(d.String() + classPart + hex.EncodeToString(sum[:8]))
	if _, there := c.chains[name]; there {
		return name
	}
	rules := [][]expr.Any{join(nftexpr.MatchAddrsInSet(c.v4, selfSet), nftexpr.Accept())}
	if d == policy.Ingress && !w.reply {
		// The node reaches its pods, whatever policies say. Answers to it are not forwarded.
		rules = append(rules, join(nftexpr.MatchFromHost(), nftexpr.Accept()))
	}
	for _, grant := range grants {
		rules = append(rules, nftexpr.Jump(w.name(grant)))
	}
	c.chains[name] = append(rules, nftexpr.Drop())
	return name
}

// classPart is in the names of chains of classes, and in no other.
const classPart = "-class/"

// grant returns the rules of a grant's chain, and adds their sets.
func (c *contents) grant(g *policy.Grant, w way) [][]expr.Any {
	var rules [][]expr.Any
	for i, r := range g.Rules {
		name := fmt.Sprintf("%s/%d", g.Name, i)
		ports := c.ports(name, w, r)
		for _, peers := range c.peers(name, w.peer(g.Direction), r) {
			for _, port := range ports {
				rules = append(rules, join(peers, port, nftexpr.Accept()))
			}
		}
	}
	return rules
}

// peers are the matches of a rule's peers; the empty one matches all.
func (c *contents) peers(name string, side nftexpr.Side, r policy.Rule) [][]expr.Any {
	if r.AnyPeer {
		return [][]expr.Any{nil}
	}
	c.addPods(name+"/pods", r.Pods)
	ranges := &set{kind: blocks, elements: map[string]string{}}
	for _, b := range r.Blocks {
		if b.First.Is4() == c.v4 {
			ranges.elements[nftexpr.KeyAddr(b.First)] = nftexpr.KeyAddr(b.Last)
		}
	}
	all := [][]expr.Any{nftexpr.MatchAddrInSet(side, c.v4, name+"/pods")}
	if len(ranges.elements) > 0 {
		c.sets[name+"/blocks"] = ranges
		all = append(all, nftexpr.MatchAddrInSet(side, c.v4, name+"/blocks"))
	}
	return all
}

// ports are the matches of a rule's ports; the empty one matches all.
func (c *contents) ports(name string, w way, r policy.Rule) [][]expr.Any {
	if r.AnyPort {
		return [][]expr.Any{nil}
	}
	var all [][]expr.Any
	for _, p := range r.Ports {
		all = append(all, nftexpr.MatchPorts(w.server, byte(p.Proto), p.First, p.Last))
	}
	for _, n := range r.Named {
		set := fmt.Sprintf("%s/%d-%d", name, n.Proto, n.Port)
		c.addPods(set, n.Pods)
		all = append(all, join(nftexpr.MatchPorts(w.server, byte(n.Proto), n.Port, n.Port), nftexpr.MatchAddrInSet(w.server, c.v4, set)))
	}
	return all
}

// addPods adds a set of the addresses of the family.
func (c *contents) addPods(name string, pods []netip.Addr) {
	made := c.set(name, addrs)
	for _, addr := range pods {
		if addr.Is4() == c.v4 {
			made.elements[nftexpr.KeyAddr(addr)] = ""
		}
	}
}

func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// describe returns a set as the kernel has it.
func (s *set) describe(table *nftables.Table, name string) (*nftables.Set, error) {
	addr := nftables.TypeIP6Addr
	if table.Family == nftables.TableFamilyIPv4 {
		addr = nftables.TypeIPAddr
	}
	made := &nftables.Set{Table: table, Name: name, KeyType: addr}
	var err error
	switch s.kind {
	case verdicts:
		made.IsMap, made.DataType = true, nftables.TypeVerdict
	case blocks:
		made.Interval = true
	case pairs:
		made.Concatenation = true
		made.KeyType, err = nftables.ConcatSetType(addr, addr)
	}
	return made, err
}

// element returns an element as the kernel has it: a range is two of them, where it begins and
// behind its end, unless it ends with the last address.
func (s *set) element(key, value string) []nftables.SetElement {
	switch s.kind {
	case verdicts:
		return []nftables.SetElement{{Key: []byte(key), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: value}}}
	case blocks:
		all := []nftables.SetElement{{Key: []byte(key)}}
		if last, ok := netip.AddrFromSlice([]byte(value)); ok && last.Next().IsValid() {
			all = append(all, nftables.SetElement{Key: last.Next().AsSlice(), IntervalEnd: true})
		}
		return all
	}
	return []nftables.SetElement{{Key: []byte(key)}}
}

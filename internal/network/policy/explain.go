package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Explanation is what the policies of a cluster mean for one pod.
type Explanation struct {
	Pod   string   `json:"pod"` // NAMESPACE/NAME
	Node  string   `json:"node"`
	Addrs []string `json:"addresses"`
	// Ingress and Egress are the policies that isolate the pod; nil if it is open.
	Ingress []Allowance `json:"ingress,omitempty"`
	Egress  []Allowance `json:"egress,omitempty"`
}

// Allowance is what one policy allows: connections that fit one of the rules.
type Allowance struct {
	Policy string          `json:"policy"` // NAMESPACE/NAME
	Rules  []ExplainedRule `json:"rules"`
}

// ExplainedRule has the other sides and the ports of connections. Each of them is never empty: "any",
// or "none" if nothing fits now.
type ExplainedRule struct {
	Peers []string `json:"peers"`
	Ports []string `json:"ports"`
}

// Explain explains the policies of each pod that has addresses, sorted by name, and returns the faults
// of Compile for all nodes, each once.
func Explain(c Cluster) ([]Explanation, []error) {
	names := map[netip.Addr]string{}
	for _, p := range without(contested(c.Pods), c.Pods) {
		for _, addr := range p.Addrs {
			names[addr] = p.Namespace + "/" + p.Name
		}
	}
	models := map[string]*Model{}
	var faults []error
	known := map[string]bool{}
	var all []Explanation
	for _, p := range c.Pods {
		m := models[p.Node]
		if m == nil {
			var found []error
			m, found = Compile(p.Node, c)
			models[p.Node] = m
			for _, fault := range found {
				if !known[fault.Error()] {
					known[fault.Error()] = true
					faults = append(faults, fault)
				}
			}
		}
		e := Explanation{Pod: p.Namespace + "/" + p.Name, Node: p.Node}
		for _, addr := range p.Addrs {
			e.Addrs = append(e.Addrs, addr.String())
		}
		e.Ingress, e.Egress = m.explain(Ingress, p, c, names), m.explain(Egress, p, c, names)
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Explanation) int { return strings.Compare(a.Pod, b.Pod) })
	return all, faults
}

// explain lists the policies that select a pod in one direction, also those that allow nothing.
func (m *Model) explain(d Direction, p Pod, c Cluster, names map[netip.Addr]string) []Allowance {
	grants, isolated := m.Isolated[d][p.Addrs[0]]
	if !isolated {
		return nil
	}
	all := []Allowance{}
	one := compiler{local: map[string][]Pod{p.Namespace: {p}}}
	for _, policy := range c.Policies {
		one.policy = policy
		if policy.Namespace != p.Namespace || !slices.Contains(directions(policy), d) || len(one.selected(p.Node)) == 0 {
			continue
		}
		a := Allowance{Policy: policy.Namespace + "/" + policy.Name, Rules: []ExplainedRule{}}
		for _, name := range grants {
			if g := m.Grants[name]; g.Policy == a.Policy {
				for _, r := range g.Rules {
					a.Rules = append(a.Rules, r.explain(names))
				}
			}
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Allowance) int { return strings.Compare(a.Policy, b.Policy) })
	return all
}

func (r Rule) explain(names map[netip.Addr]string) ExplainedRule {
	var e ExplainedRule
	if r.AnyPeer {
		e.Peers = []string{"any"}
	}
	for _, addr := range r.Pods {
		e.Peers = append(e.Peers, fmt.Sprintf("%s (%s)", names[addr], addr))
	}
	for _, b := range r.Blocks {
		e.Peers = append(e.Peers, fmt.Sprintf("%s-%s", b.First, b.Last))
	}
	if r.AnyPort {
		e.Ports = []string{"any"}
	}
	for _, p := range r.Ports {
		text := p.Proto.String()
		switch {
		case p.First == 0 && p.Last == 65535:
		case p.First == p.Last:
			text += fmt.Sprintf(" %d", p.First)
		default:
			text += fmt.Sprintf(" %d-%d", p.First, p.Last)
		}
		e.Ports = append(e.Ports, text)
	}
	for _, n := range r.Named {
		var pods []string
		for _, addr := range n.Pods {
			pods = append(pods, fmt.Sprintf("%s (%s)", names[addr], addr))
		}
		e.Ports = append(e.Ports, fmt.Sprintf("%s %d of %s", n.Proto, n.Port, strings.Join(pods, ", ")))
	}
	for _, part := range []*[]string{&e.Peers, &e.Ports} {
		if len(*part) == 0 {
			*part = []string{"none"}
		}
	}
	return e
}

// String is the name of a protocol that policies know, or its number.
func (p Protocol) String() string {
	switch p {
	case unix.IPPROTO_TCP:
		return "TCP"
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	}
	return fmt.Sprint(uint8(p))
}

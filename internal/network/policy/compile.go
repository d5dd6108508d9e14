package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berthrun/berth/internal/errs"
)

// Cluster is what a node knows of its cluster.
type Cluster struct {
	// Pods are those of all nodes.
	Pods []Pod
	// Gone are pods of the node without an object, whose processes may still run. No pod of Pods has one of their
	// addresses. Policies isolate them as they were, and they are nobody's peers.
	Gone []Pod
	// Namespaces has the labels of each namespace.
	Namespaces map[string]map[string]string
	Policies   []*networkingv1.NetworkPolicy
}

// Compile returns what a node enforces, and what it cannot understand of policies, as errors of kind
// errs.Invalid that name policy and field. What it cannot understand allows nothing.
func Compile(node string, c Cluster) (*Model, []error) {
	m := &Model{Grants: map[string]*Grant{}}
	for d := range m.Isolated {
		m.Isolated[d] = map[netip.Addr][]string{}
	}
	compiler := newCompiler(c)
	byPod := [2]map[netip.Addr]map[string][]string{{}, {}} // address -> pod -> its grants
	policies := slices.Clone(c.Policies)
	slices.SortFunc(policies, func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, policy := range policies {
		compiler.policy = policy
		selected := compiler.selected(node)
		if len(selected) == 0 {
			continue
		}
		for _, d := range directions(policy) {
			grant := compiler.grant(d, selected)
			if len(grant.Rules) > 0 {
				m.Grants[grant.Name] = grant
			}
			for _, p := range selected {
				for _, addr := range p.Addrs {
					if byPod[d][addr] == nil {
						byPod[d][addr] = map[string][]string{}
					}
					names := byPod[d][addr][p.key()]
					if len(grant.Rules) > 0 {
						names = append(names, grant.Name)
					}
					byPod[d][addr][p.key()] = names
				}
			}
		}
	}
	for d := range byPod {
		for addr, pods := range byPod[d] {
			m.Isolated[d][addr] = inAll(pods)
		}
	}
	return m, compiler.faults
}

// inAll returns the grants that all pods of an address have, sorted. An address has several pods while reports
// of pods are old: each of them may be the one that runs.
func inAll(pods map[string][]string) []string {
	var common []string
	first := true
	for _, names := range pods {
		if first {
			common, first = slices.Clone(names), false
			continue
		}
		common = slices.DeleteFunc(common, func(name string) bool { return !slices.Contains(names, name) })
	}
	slices.Sort(common)
	return common
}

// directions are those in which a policy isolates. The API server fills the field; without it, the
// documented default applies.
func directions(p *networkingv1.NetworkPolicy) []Direction {
	if len(p.Spec.PolicyTypes) == 0 {
		if len(p.Spec.Egress) > 0 {
			return []Direction{Ingress, Egress}
		}
		return []Direction{Ingress}
	}
	var all []Direction
	for _, kind := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
		if slices.Contains(p.Spec.PolicyTypes, kind) {
			all = append(all, map[networkingv1.PolicyType]Direction{networkingv1.PolicyTypeIngress: Ingress, networkingv1.PolicyTypeEgress: Egress}[kind])
		}
	}
	return all
}

type compiler struct {
	// local has the pods by namespace, with all addresses that they report.
	local map[string][]Pod
	// pods, and byNamespace, have those addresses only that no other pod reports: nobody gets a right by an
	// address that may be another pod's.
	pods        []Pod
	byNamespace map[string][]Pod
	// contested are the other addresses.
	contested  map[netip.Addr]bool
	namespaces map[string]map[string]string
	// policy is the one that is compiled.
	policy *networkingv1.NetworkPolicy
	faults []error
}

func newCompiler(c Cluster) *compiler {
	shared := contested(c.Pods)
	made := &compiler{
		local: map[string][]Pod{}, contested: shared, pods: without(shared, c.Pods),
		byNamespace: map[string][]Pod{}, namespaces: c.Namespaces,
	}
	for _, p := range slices.Concat(c.Pods, c.Gone) {
		made.local[p.Namespace] = append(made.local[p.Namespace], p)
	}
	for _, p := range made.pods {
		made.byNamespace[p.Namespace] = append(made.byNamespace[p.Namespace], p)
	}
	return made
}

func (c *compiler) fault(field string, err error) {
	c.faults = append(c.faults, fmt.Errorf("NetworkPolicy %s/%s: %s: %w: %w", c.policy.Namespace, c.policy.Name, field, errs.Invalid, err))
}

// selector reads a label selector. A nil one selects nothing, an empty one everything.
func (c *compiler) selector(field string, s *metav1.LabelSelector) (labels.Selector, bool) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.fault(field, err)
		return nil, false
	}
	return selector, true
}

// selected are the pods of the node that the policy applies to: all pods of its namespace if its
// selector cannot be read.
func (c *compiler) selected(node string) []Pod {
	selector, ok := c.selector("spec.podSelector", &c.policy.Spec.PodSelector)
	var all []Pod
	for _, p := range c.local[c.policy.Namespace] {
		if p.Node == node && (!ok || selector.Matches(labels.Set(p.Labels))) {
			all = append(all, p)
		}
	}
	return all
}

// grant compiles the rules of one direction.
func (c *compiler) grant(d Direction, selected []Pod) *Grant {
	g := &Grant{Policy: c.policy.Namespace + "/" + c.policy.Name, Direction: d}
	if d == Ingress {
		for i, r := range c.policy.Spec.Ingress {
			g.Rules = append(g.Rules, c.rule(d, fmt.Sprintf("spec.ingress[%d]", i), r.From, r.Ports, selected))
		}
	} else {
		for i, r := range c.policy.Spec.Egress {
			g.Rules = append(g.Rules, c.rule(d, fmt.Sprintf("spec.egress[%d]", i), r.To, r.Ports, selected))
		}
	}
	g.Name = g.name(c.policy.Namespace, c.policy.Name)
	return g
}

// name is readable, and has a digest of everything but the addresses of pods.
func (g *Grant) name(namespace, name string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s", g.Policy, g.Direction)
	for _, r := range g.Rules {
		fmt.Fprintf(h, "\n%v %v %v %v", r.AnyPeer, r.Blocks, r.AnyPort, r.Ports)
		for _, n := range r.Named {
			fmt.Fprintf(h, " %d:%d", n.Proto, n.Port)
		}
	}
	const longest = 100 // names in nftables have 255 bytes
	return g.Direction.String() + "/" + namespace + "/" + name[:min(len(name), longest)] + "/" + hex.EncodeToString(h.Sum(nil)[:6])
}

// rule compiles one rule. selected are the pods that the policy applies to.
func (c *compiler) rule(d Direction, field string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, selected []Pod) Rule {
	r := Rule{AnyPeer: len(peers) == 0, AnyPort: len(ports) == 0}
	peerField := field + map[Direction]string{Ingress: ".from", Egress: ".to"}[d]
	for i, peer := range peers {
		at := fmt.Sprintf("%s[%d]", peerField, i)
		if peer.IPBlock != nil {
			r.Blocks = append(r.Blocks, c.blocks(at+".ipBlock", peer.IPBlock)...)
			continue
		}
		for _, p := range c.peers(at, peer) {
			r.Pods = append(r.Pods, p.Addrs...)
		}
	}
	r.Pods, r.Blocks = sortAddrs(r.Pods), mergeRanges(r.Blocks)

	targets := selected
	if d == Egress {
		targets = c.pods
	}
	for i, port := range ports {
		c.port(&r, d, fmt.Sprintf("%s.ports[%d]", field, i), port, targets)
	}
	r.Ports = mergePorts(r.Ports)
	slices.SortFunc(r.Named, func(a, b NamedPort) int { return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port)) })
	for i := range r.Named {
		r.Named[i].Pods = sortAddrs(r.Named[i].Pods)
	}
	return r
}

func sortAddrs(all []netip.Addr) []netip.Addr {
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// peers are the pods of a peer with selectors.
func (c *compiler) peers(field string, peer networkingv1.NetworkPolicyPeer) []Pod {
	podSelector, everyPod := labels.Everything(), peer.PodSelector == nil
	if !everyPod {
		var ok bool
		if podSelector, ok = c.selector(field+".podSelector", peer.PodSelector); !ok {
			return nil
		}
	}
	namespaces := []string{c.policy.Namespace}
	switch {
	case peer.NamespaceSelector != nil:
		selector, ok := c.selector(field+".namespaceSelector", peer.NamespaceSelector)
		if !ok {
			return nil
		}
		// A namespace whose labels are not known yet is no peer: a selector could match by the
		// absence of a label.
		namespaces = nil
		for name, set := range c.namespaces {
			if selector.Matches(labels.Set(set)) {
				namespaces = append(namespaces, name)
			}
		}
	case everyPod:
		c.fault(field, fmt.Errorf("want ipBlock, podSelector or namespaceSelector"))
		return nil
	}
	var all []Pod
	for _, namespace := range namespaces {
		for _, p := range c.byNamespace[namespace] {
			if podSelector.Matches(labels.Set(p.Labels)) {
				all = append(all, p)
			}
		}
	}
	return all
}

// blocks are the addresses of a block without its exceptions.
func (c *compiler) blocks(field string, b *networkingv1.IPBlock) []Range {
	prefix, err := parsePrefix(b.CIDR)
	if err != nil {
		c.fault(field+".cidr", err)
		return nil
	}
	all := []Range{prefixRange(prefix)}
	for i, text := range b.Except {
		hole, err := parsePrefix(text)
		if err != nil {
			c.fault(fmt.Sprintf("%s.except[%d]", field, i), err)
			return nil
		}
		var rest []Range
		for _, r := range all {
			rest = append(rest, r.without(prefixRange(hole))...)
		}
		all = rest
	}
	return all
}

// parsePrefix reads a CIDR. An IPv4 prefix in the form of IPv6 is one of IPv4.
func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, err
}

// port adds a port to a rule. targets are the pods whose ports a name can mean.
func (c *compiler) port(r *Rule, d Direction, field string, port networkingv1.NetworkPolicyPort, targets []Pod) {
	proto := protocolOf(port.Protocol)
	if proto == 0 {
		c.fault(field+".protocol", fmt.Errorf("unknown protocol %q", *port.Protocol))
		return
	}
	switch {
	case port.Port == nil:
		r.Ports = append(r.Ports, PortRange{proto, 0, 65535})
	case port.Port.Type == intstr.Int:
		first := port.Port.IntVal
		last := first
		if port.EndPort != nil {
			last = *port.EndPort
		}
		if first < 0 || last < first || last > 65535 {
			c.fault(field, fmt.Errorf("ports %d-%d are out of range (1-65535)", first, last))
			return
		}
		r.Ports = append(r.Ports, PortRange{proto, uint16(first), uint16(last)})
	default:
		for _, p := range targets {
			for _, have := range p.Ports {
				if have.Name != port.Port.StrVal || have.Proto != proto {
					continue
				}
				for _, addr := range p.Addrs {
					if !c.contested[addr] && (d == Ingress || r.hasPeer(addr)) {
						r.addNamed(proto, have.Number, addr)
					}
				}
			}
		}
	}
}

func (r *Rule) addNamed(proto Protocol, port uint16, pod netip.Addr) {
	i := slices.IndexFunc(r.Named, func(n NamedPort) bool { return n.Proto == proto && n.Port == port })
	if i < 0 {
		i = len(r.Named)
		r.Named = append(r.Named, NamedPort{Proto: proto, Port: port})
	}
	r.Named[i].Pods = append(r.Named[i].Pods, pod)
}

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// oracle reads the specification of NetworkPolicy literally, for one connection, and shares no code
// with the compiler.
type oracle struct{ c Cluster }

// podAt is the pod of an address; nil if it is not a pod's.
func (o oracle) podAt(addr netip.Addr) *Pod {
	for i := range o.c.Pods {
		if slices.Contains(o.c.Pods[i].Addrs, addr) {
			return &o.c.Pods[i]
		}
	}
	return nil
}

// selects evaluates a label selector requirement by requirement.
func selects(s *metav1.LabelSelector, set map[string]string) bool {
	for key, want := range s.MatchLabels {
		if got, has := set[key]; !has || got != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, has := set[e.Key]
		ok := false
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			ok = has && slices.Contains(e.Values, got)
		case metav1.LabelSelectorOpNotIn:
			ok = !has || !slices.Contains(e.Values, got)
		case metav1.LabelSelectorOpExists:
			ok = has
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

func (o oracle) peerMatches(policyNamespace string, peer networkingv1.NetworkPolicyPeer, addr netip.Addr) bool {
	if b := peer.IPBlock; b != nil {
		if !netip.MustParsePrefix(b.CIDR).Contains(addr) {
			return false
		}
		for _, e := range b.Except {
			if netip.MustParsePrefix(e).Contains(addr) {
				return false
			}
		}
		return true
	}
	pod := o.podAt(addr)
	if pod == nil {
		return false
	}
	if peer.NamespaceSelector == nil {
		if pod.Namespace != policyNamespace {
			return false
		}
	} else if !selects(peer.NamespaceSelector, o.c.Namespaces[pod.Namespace]) {
		return false
	}
	return peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels)
}

func (o oracle) portMatches(ports []networkingv1.NetworkPolicyPort, c Conn) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		proto := map[corev1.Protocol]Protocol{"TCP": 6, "UDP": 17, "SCTP": 132}[*p.Protocol]
		if proto != c.Proto {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			if pod := o.podAt(c.Destination); pod != nil && slices.Contains(pod.Ports, PodPort{p.Port.StrVal, proto, c.Port}) {
				return true
			}
		case p.EndPort != nil:
			if int32(c.Port) >= p.Port.IntVal && int32(c.Port) <= *p.EndPort {
				return true
			}
		case int32(c.Port) == p.Port.IntVal:
			return true
		}
	}
	return false
}

// side reports whether the policies of a pod allow a connection in one direction.
func (o oracle) side(kind networkingv1.PolicyType, pod *Pod, c Conn) bool {
	isolated := false
	for _, p := range o.c.Policies {
		if p.Namespace != pod.Namespace || !slices.Contains(p.Spec.PolicyTypes, kind) || !selects(&p.Spec.PodSelector, pod.Labels) {
			continue
		}
		isolated = true
		type rule struct {
			peers []networkingv1.NetworkPolicyPeer
			ports []networkingv1.NetworkPolicyPort
		}
		var rules []rule
		other := c.Source
		if kind == networkingv1.PolicyTypeIngress {
			for _, r := range p.Spec.Ingress {
				rules = append(rules, rule{r.From, r.Ports})
			}
		} else {
			other = c.Destination
			for _, r := range p.Spec.Egress {
				rules = append(rules, rule{r.To, r.Ports})
			}
		}
		for _, r := range rules {
			peerOK := len(r.peers) == 0 || slices.ContainsFunc(r.peers, func(peer networkingv1.NetworkPolicyPeer) bool {
				return o.peerMatches(p.Namespace, peer, other)
			})
			if peerOK && o.portMatches(r.ports, c) {
				return true
			}
		}
	}
	return !isolated
}

// allows is what the node should answer.
func (o oracle) allows(node string, c Conn) bool {
	if c.Source == c.Destination {
		return true
	}
	if pod := o.podAt(c.Source); pod != nil && pod.Node == node && !o.side(networkingv1.PolicyTypeEgress, pod, c) {
		return false
	}
	if pod := o.podAt(c.Destination); pod != nil && pod.Node == node && !o.side(networkingv1.PolicyTypeIngress, pod, c) {
		return false
	}
	return true
}

// generator makes small clusters in which much collides.
type generator struct{ *rand.Rand }

func pick[T any](g generator, all ...T) T { return all[g.IntN(len(all))] }

func (g generator) labels() map[string]string {
	set := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if g.IntN(3) > 0 {
			set[key] = pick(g, "a", "b", "c")
		}
	}
	return set
}

func (g generator) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if g.IntN(3) == 0 {
		return s
	}
	if g.IntN(2) == 0 {
		s.MatchLabels = map[string]string{pick(g, "app", "tier"): pick(g, "a", "b", "c")}
	}
	if g.IntN(2) == 0 {
		e := metav1.LabelSelectorRequirement{Key: pick(g, "app", "tier"), Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = []string{pick(g, "a", "b", "c"), pick(g, "a", "b", "c")}
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func (g generator) peer() networkingv1.NetworkPolicyPeer {
	if g.IntN(3) == 0 {
		if g.IntN(2) == 0 {
			b := &networkingv1.IPBlock{CIDR: pick(g, "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/24", "192.0.2.0/24", "192.0.2.7/32")}
			for range g.IntN(3) {
				b.Except = append(b.Except, pick(g, "10.1.0.0/30", "10.2.0.0/24", "192.0.2.0/28", "255.0.0.0/8", "0.0.0.0/1"))
			}
			return networkingv1.NetworkPolicyPeer{IPBlock: b}
		}
		b := &networkingv1.IPBlock{CIDR: pick(g, "::/0", "fd00::/8", "fd00:1::/64", "2001:db8::/32")}
		for range g.IntN(3) {
			b.Except = append(b.Except, pick(g, "fd00:1::/126", "fd00:2::/64", "2001:db8::/64", "8000::/1"))
		}
		return networkingv1.NetworkPolicyPeer{IPBlock: b}
	}
	switch g.IntN(3) {
	case 0:
		return networkingv1.NetworkPolicyPeer{PodSelector: g.selector()}
	case 1:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: g.selector()}
	}
	return networkingv1.NetworkPolicyPeer{PodSelector: g.selector(), NamespaceSelector: g.selector()}
}

func (g generator) port() networkingv1.NetworkPolicyPort {
	proto := pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	port := networkingv1.NetworkPolicyPort{Protocol: &proto}
	switch g.IntN(4) {
	case 0:
	case 1:
		name := intstr.FromString(pick(g, "web", "dns"))
		port.Port = &name
	default:
		number := intstr.FromInt32(pick(g, int32(53), 80, 81, 8080))
		port.Port = &number
		if g.IntN(3) == 0 {
			end := number.IntVal + int32(g.IntN(8010))
			port.EndPort = &end
		}
	}
	return port
}

func (g generator) policy(i int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(g, "x", "y"), Name: fmt.Sprintf("p%d", i)}}
	p.Spec.PodSelector = *g.selector()
	p.Spec.PolicyTypes = pick(g, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
	for range g.IntN(3) {
		var peers []networkingv1.NetworkPolicyPeer
		for range g.IntN(3) {
			peers = append(peers, g.peer())
		}
		var ports []networkingv1.NetworkPolicyPort
		for range g.IntN(3) {
			ports = append(ports, g.port())
		}
		if g.IntN(2) == 0 {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers, Ports: ports})
		} else {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: ports})
		}
	}
	return p
}

func (g generator) cluster() Cluster {
	c := Cluster{Namespaces: map[string]map[string]string{}}
	for _, name := range []string{"x", "y", "z"} {
		c.Namespaces[name] = g.labels()
	}
	for i := range 2 + g.IntN(5) {
		node := 1 + g.IntN(2)
		p := Pod{
			Namespace: pick(g, "x", "y", "z"), Name: fmt.Sprint("pod", i), UID: fmt.Sprint(i), Node: fmt.Sprint("node", node), Labels: g.labels(),
			Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.%d.0.%d", node, i+2)), netip.MustParseAddr(fmt.Sprintf("fd00:%d::%x", node, i+2))},
		}
		for _, name := range []string{"web", "dns"} {
			if g.IntN(2) == 0 {
				p.Ports = append(p.Ports, PodPort{name, pick(g, Protocol(6), 17), pick(g, uint16(53), 80, 8080)})
			}
		}
		c.Pods = append(c.Pods, p)
	}
	for i := range g.IntN(6) {
		c.Policies = append(c.Policies, g.policy(i))
	}
	return c
}

// conns are all connections that a cluster's rules could tell apart.
func conns(c Cluster) []Conn {
	var addrs []netip.Addr
	for _, p := range c.Pods {
		addrs = append(addrs, p.Addrs...)
	}
	for _, a := range []string{"192.0.2.1", "192.0.2.7", "192.0.2.99", "10.9.9.9", "0.0.0.0", "255.255.255.255", "2001:db8::1", "2001:db8:1::1", "fd00:9::9"} {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	var all []Conn
	for _, from := range addrs {
		for _, to := range addrs {
			if from.Is4() != to.Is4() {
				continue
			}
			all = append(all, Conn{from, to, 1, 0})
			for _, proto := range []Protocol{6, 17, 132} {
				for _, port := range []uint16{53, 80, 81, 8080, 8090, 65535} {
					all = append(all, Conn{from, to, proto, port})
				}
			}
		}
	}
	return all
}

// TestModelIsWhatTheSpecificationSays compares compiled models with the oracle, over random clusters.
// BERTH_POLICY_SEED repeats a run.
func TestModelIsWhatTheSpecificationSays(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_POLICY_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	allowed, denied := 0, 0
	for range 300 {
		c := g.cluster()
		reference := oracle{c}
		all := conns(c)
		for _, node := range []string{"node1", "node2"} {
			m, faults := Compile(node, c)
			if len(faults) > 0 {
				t.Fatalf("seed %d: %v", seed, faults)
			}
			for _, conn := range all {
				want := reference.allows(node, conn)
				if want {
					allowed++
				} else {
					denied++
				}
				if got := m.Allows(conn); got != want {
					t.Fatalf("seed %d, %s: %+v: allowed %v, want %v\n%s", seed, node, conn, got, want, describe(c))
				}
			}
		}
	}
	if allowed == 0 || denied == 0 {
		t.Errorf("seed %d: %d allowed, %d denied: the clusters decide nothing", seed, allowed, denied)
	}
}

func describe(c Cluster) string {
	text := fmt.Sprintf("namespaces %v\n", c.Namespaces)
	for _, p := range c.Pods {
		text += fmt.Sprintf("%+v\n", p)
	}
	for _, p := range c.Policies {
		text += fmt.Sprintf("%s/%s %s\n", p.Namespace, p.Name, p.Spec.String())
	}
	return text
}

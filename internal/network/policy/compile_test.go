package policy

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// parse reads policies as they are written in YAML, separated by "---".
func parse(t *testing.T, text string) []*networkingv1.NetworkPolicy {
	t.Helper()
	var all []*networkingv1.NetworkPolicy
	for i, document := range strings.Split(text, "\n---\n") {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p" + string(rune('0'+i))}}
		if err := yaml.UnmarshalStrict([]byte(document), p); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		all = append(all, p)
	}
	return all
}

// The cluster of the examples. Everything runs on one node but "far".
const (
	db       = "10.0.0.1"
	frontend = "10.0.0.2"
	idle     = "10.0.0.3"
	mine     = "10.0.1.1" // namespace myproject, without a label role
	alice    = "10.0.2.1" // namespace alice, role client
	far      = "10.5.0.1" // default, role frontend, on another node
	outside  = "203.0.113.9"
)

func examples(policies []*networkingv1.NetworkPolicy) Cluster {
	pod := func(namespace, name, role, addr, node string) Pod {
		p := Pod{Namespace: namespace, Name: name, UID: name, Node: node, Labels: map[string]string{}, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
		if role != "" {
			p.Labels["role"] = role
		}
		return p
	}
	c := Cluster{
		Pods: []Pod{
			pod("default", "db", "db", db, "n1"), pod("default", "frontend", "frontend", frontend, "n1"), pod("default", "idle", "", idle, "n1"),
			pod("myproject", "mine", "", mine, "n1"), pod("alice", "alice", "client", alice, "n1"), pod("default", "far", "frontend", far, "n2"),
		},
		Namespaces: map[string]map[string]string{
			"default": {"kubernetes.io/metadata.name": "default"}, "myproject": {"project": "myproject", "kubernetes.io/metadata.name": "myproject"},
			"alice": {"user": "alice", "kubernetes.io/metadata.name": "alice"},
		},
		Policies: policies,
	}
	c.Pods[0].Ports = []PodPort{{"sql", 6, 6379}, {"metrics", 17, 9100}}
	return c
}

// expectation is a connection in words: "SOURCE DESTINATION PORT".
type expectation struct {
	from, to string
	proto    Protocol
	port     uint16
	allowed  bool
}

func (e expectation) conn() Conn {
	return Conn{netip.MustParseAddr(e.from), netip.MustParseAddr(e.to), e.proto, e.port}
}

// TestExamplesOfTheDocumentation: the policies of the page "Network Policies" of Kubernetes'
// documentation, and its words about them.
func TestExamplesOfTheDocumentation(t *testing.T) {
	const first = `
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - ipBlock: {cidr: 172.17.0.0/16, except: [172.17.1.0/24]}
    - namespaceSelector: {matchLabels: {project: myproject}}
    - podSelector: {matchLabels: {role: frontend}}
    ports:
    - {protocol: TCP, port: 6379}
  egress:
  - to:
    - ipBlock: {cidr: 10.0.0.0/24}
    ports:
    - {protocol: TCP, port: 5978}`
	for name, c := range map[string]struct {
		text string
		want []expectation
	}{
		"the NetworkPolicy resource": {first, []expectation{
			{frontend, db, 6, 6379, true},
			{mine, db, 6, 6379, true},
			{far, db, 6, 6379, true},
			{"172.17.0.5", db, 6, 6379, true},
			{"172.17.2.5", db, 6, 6379, true},
			{"172.17.1.5", db, 6, 6379, false},
			{frontend, db, 6, 6380, false},
			{frontend, db, 17, 6379, false},
			{idle, db, 6, 6379, false},
			{alice, db, 6, 6379, false},
			{db, frontend, 6, 5978, true},
			{db, frontend, 6, 5979, false},
			{db, mine, 6, 5978, false},
			{db, outside, 6, 5978, false},
			{frontend, idle, 6, 1, true},
			{db, db, 6, 1, true},
		}},
		"two selectors in one peer": {`
spec:
  podSelector: {matchLabels: {role: db}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {user: alice}}
      podSelector: {matchLabels: {role: client}}`, []expectation{
			{alice, db, 6, 1, true}, {frontend, db, 6, 1, false}, {mine, db, 6, 1, false}, {db, alice, 6, 1, true},
		}},
		"two peers": {`
spec:
  podSelector: {matchLabels: {role: db}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {user: alice}}
    - podSelector: {matchLabels: {role: client}}`, []expectation{
			{alice, db, 6, 1, true}, {frontend, db, 6, 1, false},
		}},
		"default deny all ingress": {"spec: {podSelector: {}, policyTypes: [Ingress]}", []expectation{
			{frontend, db, 6, 1, false},
			{alice, db, 6, 1, false},
			{outside, idle, 17, 1, false},
			{db, alice, 6, 1, true},
			{db, outside, 6, 1, true},
			{db, far, 6, 1, true},
			{outside, mine, 6, 1, true},
		}},
		"allow all ingress": {"spec: {podSelector: {}, ingress: [{}], policyTypes: [Ingress]}\n---\nspec: {podSelector: {}, policyTypes: [Ingress]}", []expectation{
			{frontend, db, 6, 1, true}, {outside, db, 132, 1, true}, {outside, db, 1, 0, true},
		}},
		"default deny all egress": {"spec: {podSelector: {}, policyTypes: [Egress]}", []expectation{
			{frontend, db, 6, 1, false}, {db, outside, 1, 0, false}, {alice, db, 6, 1, true},
		}},
		"allow all egress": {"spec: {podSelector: {}, egress: [{}], policyTypes: [Egress]}\n---\nspec: {podSelector: {}, policyTypes: [Egress]}", []expectation{
			{frontend, db, 6, 1, true}, {db, outside, 6, 1, true},
		}},
		"default deny all": {"spec: {podSelector: {}, policyTypes: [Ingress, Egress]}", []expectation{
			{frontend, db, 6, 1, false}, {db, outside, 6, 1, false}, {outside, db, 6, 1, false}, {idle, idle, 6, 1, true}, {mine, alice, 6, 1, true},
		}},
		"a range of ports": {`
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {cidr: 10.0.0.0/24}
    ports:
    - {protocol: TCP, port: 32000, endPort: 32768}`, []expectation{
			{db, idle, 6, 31999, false}, {db, idle, 6, 32000, true}, {db, idle, 6, 32768, true}, {db, idle, 6, 32769, false}, {db, idle, 17, 32000, false},
		}},
		"namespaces by label": {`
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Egress]
  egress:
  - to:
    - namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [myproject, alice]}]}`, []expectation{
			{db, mine, 6, 1, true}, {db, alice, 17, 1, true}, {db, frontend, 6, 1, false},
		}},
		"a port by name": {"spec: {podSelector: {}, ingress: [{ports: [{port: sql}]}]}", []expectation{
			{frontend, db, 6, 6379, true}, {frontend, db, 17, 6379, false}, {frontend, idle, 6, 6379, false}, {frontend, db, 6, 80, false},
		}},
		"a port by name, of the destination": {"spec: {podSelector: {matchLabels: {role: frontend}}, policyTypes: [Egress], egress: [{ports: [{port: metrics, protocol: UDP}]}]}", []expectation{
			{frontend, db, 17, 9100, true}, {frontend, db, 6, 9100, false}, {frontend, idle, 17, 9100, false}, {frontend, outside, 17, 9100, false},
		}},
		"policies add up": {"spec: {podSelector: {}}\n---\nspec: {podSelector: {matchLabels: {role: db}}, ingress: [{ports: [{port: 1}]}]}\n---\nspec: {podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 2}]}]}", []expectation{
			{outside, db, 6, 1, true}, {outside, db, 6, 2, false}, {idle, db, 6, 2, true}, {idle, frontend, 6, 1, false},
		}},
		"egress implies its type": {"spec: {podSelector: {}, egress: [{ports: [{port: 53, protocol: UDP}]}]}", []expectation{
			{db, outside, 17, 53, true}, {db, outside, 6, 53, false}, {outside, db, 6, 1, false},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m, faults := Compile("n1", examples(parse(t, c.text)))
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			for _, e := range c.want {
				if got := m.Allows(e.conn()); got != e.allowed {
					t.Errorf("%+v: allowed %v", e, got)
				}
			}
		})
	}
}

// TestWhatCannotBeReadAllowsNothing: a part of a policy that the API server would refuse closes, and
// the error names it.
func TestWhatCannotBeReadAllowsNothing(t *testing.T) {
	for text, field := range map[string]string{
		"spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.300/8}}]}]}":                                   "spec.ingress[0].from[0].ipBlock.cidr",
		"spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [x]}}]}]}":                         "spec.ingress[0].from[0].ipBlock.except[0]",
		"spec: {podSelector: {}, ingress: [{from: [{}]}]}":                                                                "spec.ingress[0].from[0]",
		"spec: {podSelector: {}, ingress: [{ports: [{port: 70000}]}]}":                                                    "spec.ingress[0].ports[0]",
		"spec: {podSelector: {}, ingress: [{ports: [{port: 80, endPort: 70}]}]}":                                          "spec.ingress[0].ports[0]",
		"spec: {podSelector: {}, ingress: [{ports: [{protocol: FOO}]}]}":                                                  "spec.ingress[0].ports[0].protocol",
		"spec: {podSelector: {matchExpressions: [{key: a, operator: Like}]}}":                                             "spec.podSelector",
		"spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: In}]}}]}]}":       "spec.ingress[0].from[0].podSelector",
		"spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}]}]}": "spec.ingress[0].from[0].namespaceSelector",
	} {
		m, faults := Compile("n1", examples(parse(t, text)))
		if m.Allows(expectation{from: frontend, to: db, proto: 6, port: 80}.conn()) {
			t.Errorf("%s: allows", text)
		}
		if len(faults) != 1 || !errors.Is(faults[0], errs.Invalid) || !strings.Contains(faults[0].Error(), "NetworkPolicy default/p0: "+field+": ") {
			t.Errorf("%s: %v, want one of %s", text, faults, field)
		}
	}
}

// TestUnknownNamespaceIsNoPeer: before the labels of a namespace are known, no selector matches it.
func TestUnknownNamespaceIsNoPeer(t *testing.T) {
	c := examples(parse(t, "spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: user, operator: DoesNotExist}]}}]}]}"))
	e := expectation{from: mine, to: db, proto: 6, port: 1}
	if m, _ := Compile("n1", c); !m.Allows(e.conn()) {
		t.Error("a namespace without the label is refused")
	}
	delete(c.Namespaces, "myproject")
	if m, _ := Compile("n1", c); m.Allows(e.conn()) {
		t.Error("a namespace that is not known is allowed")
	}
}

// TestReusedAddress: an address that two pods report has the rights of neither.
func TestReusedAddress(t *testing.T) {
	c := examples(parse(t, "spec: {podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}]}]}"))
	e := expectation{from: frontend, to: db, proto: 6, port: 1}
	if m, _ := Compile("n1", c); !m.Allows(e.conn()) {
		t.Fatal("the frontend is refused")
	}
	heir := Pod{Namespace: "alice", Name: "heir", UID: "heir", Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr(frontend)}}
	c.Pods = append(c.Pods, heir)
	if m, _ := Compile("n1", c); m.Allows(e.conn()) {
		t.Error("the pod that has the address now has the rights of the earlier one")
	}
	slices.Reverse(c.Pods)
	if m, _ := Compile("n1", c); m.Allows(e.conn()) {
		t.Error("the order of pods decides")
	}
}

// TestContestedAddressIsIsolated: an address that two pods report is isolated if one of them is, whichever
// came first, and only what both allow passes.
func TestContestedAddressIsIsolated(t *testing.T) {
	const text = `
spec: {podSelector: {matchLabels: {role: db}}, ingress: [{ports: [{port: 1}]}]}
---
spec: {podSelector: {}, ingress: [{ports: [{port: 2}, {port: sql}]}]}`
	c := examples(parse(t, text))
	stale := Pod{Namespace: "alice", Name: "stale", UID: "stale", Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr(db)}}
	sibling := stale
	sibling.Namespace, sibling.Ports = "default", []PodPort{{"sql", 6, 99}}
	abroad := stale
	abroad.Node = "n2"
	for name, c2 := range map[string]struct {
		more Pod
		want map[uint16]bool
	}{
		"an open pod":                    {stale, map[uint16]bool{1: true, 2: true, 3: false, 6379: false}},
		"a pod with other policies":      {sibling, map[uint16]bool{1: false, 2: true, 99: false, 6379: false}},
		"an open pod of another machine": {abroad, map[uint16]bool{1: true, 2: true, 3: false}},
	} {
		for _, more := range [][]Pod{append(slices.Clone(c.Pods), c2.more), append([]Pod{c2.more}, c.Pods...)} {
			both := c
			both.Pods = more
			m, faults := Compile("n1", both)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			for port, allowed := range c2.want {
				if e := (expectation{from: outside, to: db, proto: 6, port: port}); m.Allows(e.conn()) != allowed {
					t.Errorf("%s: port %d: allowed %v", name, port, !allowed)
				}
			}
		}
	}
}

// TestNamesOfGrants: a name stays while only addresses of pods change, and is another one otherwise.
func TestNamesOfGrants(t *testing.T) {
	name := func(text string, more ...Pod) string {
		c := examples(parse(t, text))
		c.Pods = append(c.Pods, more...)
		m, _ := Compile("n1", c)
		for name := range m.Grants {
			return name
		}
		return ""
	}
	const text = "spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}"
	first := name(text)
	if !strings.HasPrefix(first, "ingress/default/p0/") {
		t.Errorf("name %q", first)
	}
	if got := name(text, Pod{Namespace: "default", Name: "new", UID: "new", Node: "n2", Addrs: []netip.Addr{netip.MustParseAddr("10.5.0.9")}}); got != first {
		t.Errorf("with one more pod: %q, before %q", got, first)
	}
	if got := name(strings.Replace(text, "80", "81", 1)); got == first {
		t.Error("another port has the same name")
	}
}

// TestPodsWithAddresses: which pods policies know.
func TestPodsWithAddresses(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	whole := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u", Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{
				NodeName:   "n1",
				Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80, Protocol: "TCP"}, {ContainerPort: 81}}}},
				InitContainers: []corev1.Container{
					{Ports: []corev1.ContainerPort{{Name: "setup", ContainerPort: 1}}},
					{RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "proxy", ContainerPort: 15000, Protocol: "UDP"}}},
				},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}},
		}
	}
	pod, ok := PodOf(whole())
	if !ok || pod.Node != "n1" || len(pod.Addrs) != 2 || !slices.Equal(pod.Ports, []PodPort{{"web", 6, 80}, {"proxy", 17, 15000}}) {
		t.Errorf("%v %+v", ok, pod)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"in the network of the node": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"succeeded":                  func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":                     func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"without an address":         func(p *corev1.Pod) { p.Status.PodIPs = nil },
	} {
		p := whole()
		change(p)
		if _, ok := PodOf(p); ok {
			t.Errorf("a pod %s has an address of its own", name)
		}
	}
	ending := whole()
	now := metav1.Now()
	ending.DeletionTimestamp = &now
	if _, ok := PodOf(ending); !ok {
		t.Error("a pod that is being deleted, but runs, is not known")
	}
}

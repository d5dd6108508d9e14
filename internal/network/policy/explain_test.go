package policy

import (
	"slices"
	"testing"
)

func TestExplain(t *testing.T) {
	const text = `
spec:
  podSelector: {matchLabels: {role: db}}
  ingress:
  - from: [{ipBlock: {cidr: 172.17.0.0/24}}, {podSelector: {matchLabels: {role: frontend}}}]
    ports: [{port: sql}, {port: 80, endPort: 90}, {protocol: UDP}]
  - ports: [{port: nothing}]
---
spec: {podSelector: {}, policyTypes: [Ingress]}`
	all, faults := Explain(examples(parse(t, text)))
	if len(faults) > 0 || len(all) != 6 {
		t.Fatal(faults, all)
	}
	i := slices.IndexFunc(all, func(e Explanation) bool { return e.Pod == "default/db" })
	db := all[i]
	if db.Node != "n1" || !slices.Equal(db.Addrs, []string{"10.0.0.1"}) || db.Egress != nil || len(db.Ingress) != 2 {
		t.Fatalf("%+v", db)
	}
	first, second := db.Ingress[0], db.Ingress[1]
	if first.Policy != "default/p0" || len(first.Rules) != 2 ||
		!slices.Equal(first.Rules[0].Peers, []string{"default/frontend (10.0.0.2)", "default/far (10.5.0.1)", "172.17.0.0-172.17.0.255"}) ||
		!slices.Equal(first.Rules[0].Ports, []string{"TCP 80-90", "UDP", "TCP 6379 of default/db (10.0.0.1)"}) ||
		!slices.Equal(first.Rules[1].Peers, []string{"any"}) || !slices.Equal(first.Rules[1].Ports, []string{"none"}) {
		t.Errorf("%+v", first)
	}
	if second.Policy != "default/p1" || second.Rules == nil || len(second.Rules) != 0 {
		t.Errorf("%+v", second)
	}
	if open := all[slices.IndexFunc(all, func(e Explanation) bool { return e.Pod == "alice/alice" })]; open.Ingress != nil || open.Egress != nil {
		t.Errorf("%+v", open)
	}
}

// TestExplainReportsFaultsOfAllNodes: each fault once, wherever the pods are that its policy selects.
func TestExplainReportsFaultsOfAllNodes(t *testing.T) {
	const text = `
spec: {podSelector: {}, ingress: [{from: [{}]}]}
---
spec: {podSelector: {matchLabels: {role: db}}, egress: [{to: [{}]}], policyTypes: [Egress]}`
	c := examples(parse(t, text))
	for range 2 {
		if _, faults := Explain(c); len(faults) != 2 {
			t.Errorf("%q", faults)
		}
		slices.Reverse(c.Pods)
	}
}

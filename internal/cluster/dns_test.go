package cluster

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/clustertest"
)

// TestDNSPrefersUDP: kubeadm's Corefile gets the option, once; where there is none, or another one,
// nothing is changed.
func TestDNSPrefersUDP(t *testing.T) {
	const (
		begin = ".:53 {\n    errors\n    forward . /etc/resolv.conf {\n"
		end   = "       max_concurrent 1000\n    }\n    cache 30\n}\n"
	)
	for before, after := range map[string]string{
		begin + end:                            begin + "       prefer_udp\n" + end,
		begin + "       prefer_udp\n" + end:    begin + "       prefer_udp\n" + end,
		".:53 {\n    forward . 192.0.2.1\n}\n": ".:53 {\n    forward . 192.0.2.1\n}\n",
		"":                                     "",
	} {
		if got := withPreferUDP(before); got != after {
			t.Errorf("of %q came %q, want %q", before, got, after)
		}
	}

	f := clustertest.New(t)
	f.CoreDNS = `{"data":{"Corefile":".:53 {\n    forward . /etc/resolv.conf {\n    }\n}\n"}}`
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "")}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(f.CoreDNS, `forward . /etc/resolv.conf {\n       prefer_udp\n`) {
		t.Errorf("the ConfigMap is %s", f.CoreDNS)
	}
}

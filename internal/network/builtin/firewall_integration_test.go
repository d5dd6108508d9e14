//go:build integration

package builtin_test

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/require"
)

// TestForeignFirewalls: each firewall makes the host drop forwarded packets. Pods can still reach
// other hosts, and other hosts can reach the pods' host ports.
func TestForeignFirewalls(t *testing.T) {
	for name, c := range map[string]struct{ setup, list []string }{
		"docker (iptables-nft)": {
			[]string{"iptables -P FORWARD DROP", "ip6tables -P FORWARD DROP", "iptables -N DOCKER-USER", "iptables -A FORWARD -j DOCKER-USER"},
			[]string{"iptables -S", "ip6tables -S"},
		},
		"ufw (iptables-legacy)": {
			[]string{"iptables-legacy -P FORWARD DROP", "ip6tables-legacy -P FORWARD DROP"},
			[]string{"iptables-legacy -S", "ip6tables-legacy -S"},
		},
		"reject at the end (iptables-nft)": {
			[]string{"iptables -A FORWARD -j REJECT", "ip6tables -A FORWARD -j REJECT"},
			[]string{"iptables -S", "ip6tables -S"},
		},
		"firewalld (nftables)": {
			[]string{
				"nft add table inet firewalld",
				"nft add chain inet firewalld filter_FORWARD { type filter hook forward priority filter + 10 ; }",
				"nft add rule inet firewalld filter_FORWARD ct state established,related accept",
				"nft add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited",
			},
			[]string{"nft list table inet firewalld"},
		},
		"own rules with a policy (nftables)": {
			[]string{"nft add table inet filter", "nft add chain inet filter forward { type filter hook forward priority filter ; policy drop ; }"},
			[]string{"nft list table inet filter"},
		},
	} {
		t.Run(name, func(t *testing.T) { testFirewall(t, c.setup, c.list) })
	}
}

func testFirewall(t *testing.T, setup, list []string) {
	l := newLab(t)
	for _, command := range append(setup, list...) {
		require.Binary(t, strings.Fields(command)[0])
	}
	other := l.outside()
	for _, command := range setup {
		words := strings.Fields(command)
		l.run(l.host, words[0], words[1:]...)
	}
	show := func() (all string) {
		for _, command := range list {
			words := strings.Fields(command)
			all += l.run(l.host, words[0], words[1:]...)
		}
		return all
	}
	before := show()
	n := l.open(l.config())
	web := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	client := l.pod()
	ips := l.attach(n, web).IPs
	l.attach(n, client)
	l.serve(web.NetNS, 80, "web")
	l.serve(other, 9000, "other")
	for i, outside := range []string{"192.0.2.2", "2001:db8::2"} {
		host := []string{"192.0.2.1", "2001:db8::1"}[i]
		l.wantAnswer(web.NetNS, "tcp", outside, 9000, "other", host)
		l.wantAnswer(other, "tcp", host, 8080, "web", outside)
		l.wantAnswer(client.NetNS, "tcp", ips[i].String(), 80, "web", "")
	}
	// Other hosts can reach pods only through host ports.
	l.run(other, "ip", "route", "add", ips[0].String()+"/32", "via", "192.0.2.1")
	l.wantSilence(other, "tcp", ips[0].String(), 80)
	if !strings.Contains(n.Info()["firewall"], "accept rules") {
		t.Errorf("Info does not tell: %q", n.Info()["firewall"])
	}
	with := show()
	if err := n.Ready(t.Context()); err != nil || show() != with {
		t.Errorf("a second look changed something (%v):\n%s\n%s", err, with, show())
	}
	for _, att := range []*network.Attachment{web, client} {
		if err := n.Detach(t.Context(), att); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if after := show(); after != before {
		t.Errorf("rules before:\n%s\nafter:\n%s", before, after)
	}
}

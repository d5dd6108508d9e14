//go:build integration && e2e

package all_test

import (
	"fmt"
	"math/rand/v2"
)

// linkPlugins are the plugins that give a pod its link.
func linkPlugins() []string { return []string{"bridge", "ptp"} }

// moreCases are those of ptp, and of plugins that follow another.
func moreCases(add func(name, conf string, more ...func(*attachment)), capability func(name string, value any) func(*attachment)) {
	link := with("bridge", `"isGateway":true`, hostLocal(rangesBoth))
	for name, ranges := range map[string]string{"IPv4": ranges4, "IPv6": ranges6, "dual": rangesBoth} {
		add("ptp/"+name, list("1.1.0", with("ptp", hostLocal(ranges))))
		add("ptp/routes/"+name, list("1.0.0", with("ptp", hostLocal(ranges, `"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`))))
		for _, backend := range []string{"iptables", "nftables"} {
			add("ptp/ipMasq/"+backend+"/"+name, list("1.0.0", with("ptp", `"ipMasq":true,"ipMasqBackend":"`+backend+`"`, hostLocal(ranges))))
		}
	}
	for _, option := range []string{`"mtu":1400`, `"mtu":1`, `"dns":{"nameservers":["1.1.1.1"]}`, `"mtu":"x"`} {
		add("ptp/"+option, list("1.0.0", with("ptp", option, hostLocal(ranges4))))
	}
	add("ptp/no IPAM", list("1.0.0", with("ptp")))
	add("ptp/missing IPAM", list("1.0.0", with("ptp", `"ipam":{"type":"nonesuch"}`)))
	add("ptp/static", list("1.0.0", with("ptp", `"ipam":{"type":"static","addresses":[{"address":"10.5.0.9/24","gateway":"10.5.0.1"}]}`)))

	tuning := func(parts ...string) string { return with("tuning", append(parts, `"dataDir":"%DIR%/tuning"`)...) }
	for _, option := range []string{
		`"sysctl":{"net.core.somaxconn":"500","net.ipv4.conf.IFNAME.arp_filter":"1"}`, `"sysctl":{"kernel.pid_max":"1"}`, `"sysctl":{"net.nonesuch":"1"}`,
		`"sysctl":{"net.ipv4.conf.all.log_martians":"1","net.ipv4.conf.all.log_martians":"0"}`, `"sysctl":{"net/../kernel/pid_max":"1"}`, `"sysctl":7`, `"sysctl":{"net.core.somaxconn":7}`, `"sysctl":["net.core.somaxconn"]`, `"sysctl":null`,
		`"mac":"02:11:00:00:00:05"`, `"mac":"x"`, `"promisc":true`, `"mtu":1300`, `"mtu":-5`, `"allmulti":true`, `"allmulti":false`, `"txQLen":77`, `"txQLen":0`,
		`"mac":"02:11:00:00:00:06","promisc":true,"mtu":1290,"allmulti":true,"txQLen":5`,
		`"args":{"cni":{"mac":"02:11:00:00:00:07","promisc":true,"mtu":1288,"allmulti":true,"txQLen":6}}`,
		`"sysctl":{"net.core.somaxconn":"501"},"args":{"cni":{"sysctl":{"net.core.somaxconn":"502"}}}`,
	} {
		add("tuning/"+option, list("1.0.0", link, tuning(option)))
	}
	add("tuning/alone", list("1.0.0", tuning(`"mtu":1300`)))
	add("tuning/old version", list("0.3.1", link, tuning(`"mac":"02:11:00:00:00:05"`)))
	add("tuning/mac of capability", list("1.0.0", link, tuning(`"capabilities":{"mac":true}`)), capability("mac", "02:11:00:00:00:08"))

	for _, option := range []string{
		`"ingressRate":1000000,"ingressBurst":80000`, `"egressRate":1000000,"egressBurst":80000`, `"ingressRate":1`, `"ingressBurst":1`, `"ingressRate":7,"ingressBurst":7`,
		`"ingressRate":12345678,"ingressBurst":2147483647,"egressRate":987654321,"egressBurst":4294967295`, `"ingressRate":1,"ingressBurst":99999999999`,
		`"ingressRate":0,"ingressBurst":0`, `"ingressRate":-1`,
	} {
		add("bandwidth/"+option, list("1.0.0", link, with("bandwidth", option)))
		if option != `"ingressRate":0,"ingressBurst":0` { // alone, the reference dereferences nil
			add("bandwidth/alone/"+option, list("1.0.0", with("bandwidth", option)))
		}
	}
	add("bandwidth/after ptp", list("1.1.0", with("ptp", hostLocal(ranges4)), with("bandwidth", `"ingressRate":1000000,"ingressBurst":80000,"egressRate":1000000,"egressBurst":80000`)))
	add("bandwidth/old version", list("0.2.0", with("bridge", hostLocal(ranges4)), with("bandwidth", `"ingressRate":1000000,"ingressBurst":80000`)))
	add("bandwidth/of capability", list("1.0.0", link, with("bandwidth", `"capabilities":{"bandwidth":true}`)),
		capability("bandwidth", map[string]int{"ingressRate": 3000000, "ingressBurst": 90000, "egressRate": 4000000, "egressBurst": 90000}))
	add("bandwidth/of both", list("1.0.0", link, with("bandwidth", `"ingressRate":1000000,"ingressBurst":80000,"capabilities":{"bandwidth":true}`)),
		capability("bandwidth", map[string]int{"egressRate": 4000000, "egressBurst": 90000}))
	portCases(add, capability)
	for _, option := range []string{
		`"backend":"iptables"`, `"backend":"else"`, `"iptablesAdminChainName":"MINE"`, `"ingressPolicy":"open"`, `"ingressPolicy":"same-bridge"`, `"ingressPolicy":"isolated"`,
		`"ingressPolicy":"x"`, `"firewalldZone":"z"`,
	} {
		add("firewall/"+option, list("1.0.0", link, with("firewall", option)))
	}
	add("firewall/after ptp", list("1.1.0", with("ptp", hostLocal(rangesBoth)), with("firewall", `"ingressPolicy":"same-bridge"`)))
	add("firewall/alone", list("1.0.0", with("firewall", `"backend":"iptables"`)))
	add("firewall/old version", list("0.3.1", link, with("firewall", `"backend":"iptables"`)))
	add("chain/loopback", list("1.0.0", link, with("loopback")))
}

// portCases are those of portmap.
func portCases(add func(name, conf string, more ...func(*attachment)), capability func(name string, value any) func(*attachment)) {
	type ports []map[string]any
	some := ports{
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
		{"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
		{"hostPort": 8443, "containerPort": 443, "protocol": "tcp", "hostIP": "127.0.0.1"},
		{"hostPort": 8444, "containerPort": 443, "protocol": "tcp", "hostIP": "::1"},
		{"hostPort": 9000, "containerPort": 9000, "protocol": "sctp", "hostIP": "0.0.0.0"},
	}
	var many ports
	for i := range 33 {
		many = append(many, map[string]any{"hostPort": 1000 + i, "containerPort": 2000 + i, "protocol": "tcp"})
	}
	portmap := func(parts ...string) string {
		return with("portmap", append(parts, `"capabilities":{"portMappings":true}`)...)
	}
	for name, ranges := range map[string]string{"IPv4": ranges4, "IPv6": ranges6, "dual": rangesBoth} {
		link := with("bridge", `"isDefaultGateway":true`, hostLocal(ranges))
		for _, backend := range []string{"iptables", "nftables"} {
			for _, option := range []string{`"snat":true`, `"snat":false`, `"masqAll":true`, `"markMasqBit":5`, `"externalSetMarkChain":"MARKS"`} {
				add("portmap/"+backend+"/"+option+"/"+name, list("1.0.0", link, portmap(option, `"backend":"`+backend+`"`)), capability("portMappings", some))
			}
		}
		add("portmap/default/"+name, list("1.1.0", link, portmap()), capability("portMappings", some))
	}
	link := with("bridge", hostLocal(rangesBoth))
	for _, option := range []string{
		`"markMasqBit":5,"externalSetMarkChain":"MARKS"`, `"markMasqBit":32`, `"markMasqBit":-1`, `"backend":"else"`,
		`"conditionsV4":["-s","10.0.0.0/8"],"conditionsV6":["!","-s","fd00::/8"]`, `"conditionsV4":["ip","saddr","10.0.0.0/8"],"conditionsV6":[]`,
		`"backend":"nftables","conditionsV4":["ip","saddr","10.0.0.0/8"],"conditionsV6":["ip6 saddr fd00::/8"]`, `"backend":"nftables","conditionsV4":["-s","10.0.0.0/8"]`,
		`"backend":"nftables","externalSetMarkChain":"x"`,
	} {
		add("portmap/"+option, list("1.0.0", link, portmap(option)), capability("portMappings", some))
	}
	add("portmap/many", list("1.0.0", link, portmap()), capability("portMappings", many))
	add("portmap/none", list("1.0.0", link, portmap()))
	add("portmap/alone", list("1.0.0", portmap()), capability("portMappings", some))
	add("portmap/no port", list("1.0.0", link, portmap()), capability("portMappings", ports{{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}}))
	add("portmap/no container port", list("1.0.0", link, portmap()), capability("portMappings", ports{{"hostPort": 80, "containerPort": 0, "protocol": "tcp"}}))
	add("portmap/protocol", list("1.0.0", link, portmap()), capability("portMappings", ports{{"hostPort": 80, "containerPort": 80, "protocol": "xtp"}}))
}

// chained are plugins that follow another, by name.
func chained(r *rand.Rand, a *attachment) map[string]string {
	rate := 1_000_000 + r.IntN(1_000_000_000)
	a.caps["bandwidth"] = map[string]int{"ingressRate": rate, "ingressBurst": 80000 + r.IntN(1<<30), "egressRate": rate / 2, "egressBurst": 80000}
	a.caps["portMappings"] = []map[string]any{
		{"hostPort": 1 + r.IntN(60000), "containerPort": 80, "protocol": []string{"tcp", "udp", "sctp"}[r.IntN(3)]},
		{"hostPort": 1 + r.IntN(60000), "containerPort": 81, "protocol": "tcp", "hostIP": []string{"127.0.0.1", "::1", "0.0.0.0"}[r.IntN(3)]},
	}
	return map[string]string{
		"portmap":  with("portmap", `"capabilities":{"portMappings":true}`, []string{`"snat":true`, `"snat":false`, `"masqAll":true`, `"backend":"nftables"`}[r.IntN(4)]),
		"firewall": with("firewall", `"backend":"iptables"`, []string{`"ingressPolicy":"open"`, `"ingressPolicy":"same-bridge"`, `"ingressPolicy":"isolated"`}[r.IntN(3)]),
		"loopback": with("loopback"),
		"bandwidth": []string{
			with("bandwidth", `"capabilities":{"bandwidth":true}`),
			with("bandwidth", fmt.Sprintf(`"egressRate":%d,"egressBurst":%d`, rate, rate)),
		}[r.IntN(2)],
		"tuning": with("tuning", `"dataDir":"%DIR%/tuning"`, []string{
			`"sysctl":{"net.core.somaxconn":"321"}`, `"mtu":1350`, `"mac":"02:11:00:00:00:09"`, `"promisc":true`, `"allmulti":true`, `"txQLen":11`,
		}[r.IntN(6)]),
	}
}

//go:build integration && e2e

package all_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

type namedCase struct {
	name string
	attachment
}

// list makes a configuration of plugins, each a JSON object.
func list(version string, plugins ...string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net","plugins":[%s]}`, version, strings.Join(plugins, ","))
}

const (
	ranges4    = `"ranges":[[{"subnet":"10.61.0.0/24"}]]`
	ranges6    = `"ranges":[[{"subnet":"fd61::/64"}]]`
	rangesBoth = `"ranges":[[{"subnet":"10.61.0.0/24"}],[{"subnet":"fd61::/64"}]]`
)

// hostLocal is the IPAM part of a configuration.
func hostLocal(parts ...string) string {
	return `"ipam":{"type":"host-local","dataDir":"%DIR%/ipam",` + strings.Join(parts, ",") + `}`
}

// with makes a plugin of a type with more keys.
func with(kind string, parts ...string) string {
	return "{" + strings.Join(append([]string{`"type":"` + kind + `"`}, parts...), ",") + "}"
}

// cases are options one by one.
func cases() []namedCase {
	var all []namedCase
	add := func(name, conf string, more ...func(*attachment)) {
		a := attachment{conf: conf}
		for _, m := range more {
			m(&a)
		}
		all = append(all, namedCase{name, a})
	}
	args := func(pairs ...string) func(*attachment) {
		return func(a *attachment) {
			for i := 0; i < len(pairs); i += 2 {
				a.args = append(a.args, [2]string{pairs[i], pairs[i+1]})
			}
		}
	}
	capability := func(name string, value any) func(*attachment) {
		return func(a *attachment) {
			if a.caps == nil {
				a.caps = map[string]any{}
			}
			a.caps[name] = value
		}
	}
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		add("loopback/"+v, list(v, with("loopback")))
		add("bridge/"+v, list(v, with("bridge", hostLocal(ranges4))))
	}
	for name, ranges := range map[string]string{"IPv4": ranges4, "IPv6": ranges6, "dual": rangesBoth} {
		gateway := `"isGateway":true`
		add("bridge/"+name, list("1.1.0", with("bridge", hostLocal(ranges))))
		add("bridge/isGateway/"+name, list("1.1.0", with("bridge", gateway, hostLocal(ranges))))
		add("bridge/isDefaultGateway/"+name, list("1.1.0", with("bridge", `"isDefaultGateway":true`, hostLocal(ranges))))
		for _, backend := range []string{"iptables", "nftables", "else"} {
			add("bridge/ipMasq/"+backend+"/"+name, list("1.0.0", with("bridge", gateway, `"ipMasq":true`, `"ipMasqBackend":"`+backend+`"`, hostLocal(ranges))))
		}
		add("bridge/ipMasq/"+name, list("1.0.0", with("bridge", gateway, `"ipMasq":true`, hostLocal(ranges))))
		add("bridge/isDefaultGateway/two default routes/"+name, list("1.1.0", with("bridge", `"isDefaultGateway":true`,
			hostLocal(ranges, `"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`))))
		add("bridge/routes/"+name, list("1.0.0", with("bridge", `"isDefaultGateway":true`,
			hostLocal(ranges, `"routes":[{"dst":"0.0.0.0/0","gw":"10.61.0.1"},{"dst":"10.99.0.0/16","priority":7,"table":200}]`))))
		add("bridge/vlan/gateway/"+name, list("1.0.0", with("bridge", gateway, `"vlan":100`, hostLocal(ranges))))
		add("bridge/enabledad/"+name, list("1.0.0", with("bridge", gateway, `"enabledad":true`, hostLocal(ranges))))
	}
	for _, option := range []string{
		`"bridge":"br9"`, `"mtu":1400`, `"mtu":10`, `"hairpinMode":true`, `"promiscMode":true`, `"hairpinMode":true,"promiscMode":true`,
		`"vlan":100`, `"vlan":4095`, `"vlan":100,"preserveDefaultVlan":true`, `"vlanTrunk":[{"minID":100,"maxID":103},{"id":101},{"id":200}]`,
		`"vlanTrunk":[{"minID":100}]`, `"vlanTrunk":[{"maxID":100}]`, `"vlanTrunk":[{"minID":9,"maxID":3}]`, `"vlanTrunk":[{"id":0}]`,
		`"vlanTrunk":[{"minID":0,"maxID":3}]`, `"vlanTrunk":[{"minID":1,"maxID":5000}]`, `"vlanTrunk":[]`, `"vlan":5,"vlanTrunk":[{"id":7}]`,
		`"macspoofchk":true`, `"portIsolation":true`, `"disableContainerInterface":true`, `"forceAddress":true`,
		`"args":{"cni":{"mac":"02:11:00:00:00:01"}}`, `"args":{"cni":{"mac":"nonsense"}}`, `"BRIDGE":"br8"`,
		`"dns":{"nameservers":["1.1.1.1"],"search":["a"],"domain":"d","options":["o"]}`, `"bridge":7`, `"bridge":"lo"`,
	} {
		add("bridge/"+option, list("1.0.0", with("bridge", option, hostLocal(ranges4))))
		add("bridge/no IPAM/"+option, list("1.0.0", with("bridge", option)))
	}
	add("bridge/mac of capability", list("1.0.0", with("bridge", `"capabilities":{"mac":true}`, hostLocal(ranges4))), capability("mac", "02:11:00:00:00:02"))
	add("bridge/mac of arguments", list("1.0.0", with("bridge", hostLocal(ranges4))), args("IgnoreUnknown", "1", "MAC", "02:11:00:00:00:03"))
	add("bridge/unknown argument", list("1.0.0", with("bridge", hostLocal(ranges4))), args("FOO", "1"))
	add("bridge/static", list("1.0.0", with("bridge", `"isGateway":true`, `"ipam":{"type":"static","addresses":[{"address":"10.5.0.9/24"}],"routes":[{"dst":"0.0.0.0/0"}]}`)))
	add("bridge/missing IPAM", list("1.0.0", with("bridge", `"ipam":{"type":"nonesuch"}`)))
	add("bridge/two addresses of the gateway", list("1.0.0", with("bridge", `"isGateway":true`, hostLocal(`"ranges":[[{"subnet":"10.61.0.0/24"}],[{"subnet":"10.62.0.0/24"}]]`))))
	add("bridge/two addresses of the gateway by force", list("1.0.0", with("bridge", `"isGateway":true,"forceAddress":true`, hostLocal(`"ranges":[[{"subnet":"10.61.0.0/24"}],[{"subnet":"10.62.0.0/24"}]]`))))
	for name, part := range map[string]string{
		"range": `"subnet":"10.61.0.0/24","rangeStart":"10.61.0.10","rangeEnd":"10.61.0.20","gateway":"10.61.0.12"`, "old form": `"subnet":"10.61.0.0/24"`,
		"small": `"subnet":"10.61.0.0/31"`, "exhausted": `"subnet":"10.61.0.0/30","gateway":"10.61.0.2","rangeStart":"10.61.0.2","rangeEnd":"10.61.0.2"`,
		"host bits": `"subnet":"10.61.0.5/24"`, "overlap": `"ranges":[[{"subnet":"10.61.0.0/24"}],[{"subnet":"10.61.0.0/16"}]]`, "none": `"ranges":[]`,
		"mixed": `"ranges":[[{"subnet":"10.61.0.0/24"},{"subnet":"fd61::/64"}]]`, "start outside": `"subnet":"10.61.0.0/24","rangeStart":"10.62.0.1"`,
		"resolvConf": `"subnet":"10.61.0.0/24","resolvConf":"/etc/resolv.conf"`, "no resolvConf": `"subnet":"10.61.0.0/24","resolvConf":"/nonesuch"`,
		"wrong type": `"subnet":7`, "several": `"ranges":[[{"subnet":"10.61.0.0/24","rangeEnd":"10.61.0.9"},{"subnet":"10.63.0.0/24"}]]`,
	} {
		add("host-local/"+name, list("1.0.0", with("bridge", hostLocal(part))))
	}
	add("host-local/address of arguments", list("1.0.0", with("bridge", hostLocal(ranges4))), args("IgnoreUnknown", "1", "IP", "10.61.0.77"))
	add("host-local/address outside", list("1.0.0", with("bridge", hostLocal(ranges4))), args("IgnoreUnknown", "1", "IP", "10.66.0.77"))
	add("host-local/gateway's address", list("1.0.0", with("bridge", hostLocal(ranges4))), args("IgnoreUnknown", "1", "IP", "10.61.0.1"))
	add("host-local/ips", list("1.0.0", with("bridge", `"capabilities":{"ips":true}`, hostLocal(rangesBoth))), capability("ips", []string{"fd61::99/64", "10.61.0.50"}))
	add("host-local/ips of args", list("1.0.0", with("bridge", `"args":{"cni":{"ips":["10.61.0.51"]}}`, hostLocal(rangesBoth))))
	add("host-local/ipRanges", list("1.0.0", with("bridge", `"capabilities":{"ipRanges":true}`, hostLocal(`"routes":[]`))), capability("ipRanges", [][]map[string]string{{{"subnet": "10.64.0.0/24"}}, {{"subnet": "fd64::/64"}}}))
	moreCases(add, capability)
	return all
}

// generate makes a random configuration of plugins that work together, or nearly.
func generate(r *rand.Rand) attachment {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	maybe := func(parts []string, of ...string) []string {
		if r.IntN(3) == 0 {
			return append(parts, pick(of...))
		}
		return parts
	}
	a := attachment{caps: map[string]any{}}
	ranges := pick(ranges4, ranges6, rangesBoth)
	ipam := []string{ranges}
	ipam = maybe(ipam, `"routes":[{"dst":"0.0.0.0/0"}]`, `"routes":[{"dst":"::/0"}]`, `"routes":[{"dst":"10.99.0.0/16","gw":"10.61.0.1"},{"dst":"fd99::/64","gw":"fd61::1"}]`, `"routes":[{"dst":"10.98.0.0/24","mtu":1300,"advmss":1200,"priority":3,"scope":0}]`)
	parts := []string{hostLocal(ipam...)}
	kind := pick(linkPlugins()...)
	if kind == "bridge" {
		for _, options := range [][]string{
			{`"bridge":"brx"`},
			{`"isGateway":true`, `"isDefaultGateway":true`, `"isGateway":false`},
			{`"mtu":1400`, `"mtu":9000`},
			{`"hairpinMode":true`, `"promiscMode":true`},
			{`"vlan":7`, `"vlanTrunk":[{"minID":5,"maxID":8}]`, `"vlan":9,"preserveDefaultVlan":true`},
			{`"macspoofchk":true`},
			{`"portIsolation":true`},
			{`"forceAddress":true`},
		} {
			parts = maybe(parts, options...)
		}
	}
	if kind == "ptp" {
		parts = maybe(parts, `"mtu":1400`, `"mtu":9000`)
	}
	parts = maybe(parts, `"ipMasq":true`, `"ipMasq":true,"ipMasqBackend":"nftables"`, `"ipMasq":true,"ipMasqBackend":"iptables"`)
	parts = maybe(parts, `"dns":{"nameservers":["9.9.9.9"]}`)
	plugins := []string{with(kind, parts...)}
	chain := chained(r, &a)
	for _, name := range slices.Sorted(maps.Keys(chain)) {
		if r.IntN(2) == 0 {
			plugins = append(plugins, chain[name])
		}
	}
	r.Shuffle(len(plugins)-1, func(i, j int) { plugins[i+1], plugins[j+1] = plugins[j+1], plugins[i+1] })
	a.conf = list(pick("0.3.1", "0.4.0", "1.0.0", "1.1.0"), plugins...)
	var valid any
	if err := json.Unmarshal([]byte(a.conf), &valid); err != nil {
		panic(err)
	}
	return a
}

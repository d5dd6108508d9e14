package podlink

import (
	"context"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/google/nftables"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/xtables"
)

const (
	natTable    = "nat"
	postrouting = "POSTROUTING"
	iptables    = "iptables"
	// nftMasqTable is the table of the reference's backend nftables.
	nftMasqTable = "cni_plugins_masquerade"
)

// Masquerade has the host masquerade what the pod sends from its addresses to other subnets.
// The rules are the reference's, with the backend of the configuration, nil for the one that the
// host has.
func Masquerade(ctx context.Context, c *plugin.Call, backend *string, network string, ips []*types100.IPConfig) error {
	c.Stage("masquerade")
	subnets := []*net.IPNet{}
	for _, address := range ips {
		subnets = append(subnets, &address.Address)
	}
	if (backend == nil || *backend == iptables) && addAtOnce(ctx, backend == nil, c.ContainerID, network, subnets) {
		return nil
	}
	return ip.SetupIPMasqForNetworks(backend, subnets, network, c.IfName, c.ContainerID)
}

// addAtOnce adds the rules of a pod that has none, and reports whether it could. Without a
// backend in the configuration, the host's is iptables if there is one for IPv4.
func addAtOnce(ctx context.Context, chosen bool, container, network string, subnets []*net.IPNet) bool {
	chain, comment := utils.FormatChainName(network, container), utils.FormatComment(network, container)
	commented := func(words ...string) []string { return append(words, "-m", "comment", "--comment", comment) }
	for _, v6 := range []bool{false, true} {
		own := ofFamily(subnets, v6)
		if len(own) == 0 && (v6 || !chosen) {
			continue
		}
		now, err := xtables.Read(ctx, v6, natTable)
		if err != nil || now.HasChain(chain) {
			return false
		}
		if len(own) == 0 {
			continue
		}
		multicast := "224.0.0.0/4"
		if v6 {
			multicast = "ff00::/8"
		}
		var rules [][]string
		for _, s := range own {
			rules = append(rules, append(commented("-d", s.String()), "-j", "ACCEPT"), append(commented("!", "-d", multicast), "-j", "MASQUERADE"))
		}
		commands := xtables.NewChain(chain, rules)
		for _, s := range own {
			commands = append(commands, xtables.Line("-A", postrouting, append(commented("-s", s.IP.String()), "-j", chain)))
		}
		if now.Change(ctx, commands) != nil {
			return false // the reference's way completes what is there, or says what is wrong
		}
	}
	return true
}

// ofFamily returns the subnets of one family.
func ofFamily(subnets []*net.IPNet, v6 bool) []*net.IPNet {
	var own []*net.IPNet
	for _, s := range subnets {
		if (s.IP.To4() == nil) == v6 {
			own = append(own, s)
		}
	}
	return own
}

// RemoveMasquerade removes the rules of both backends.
func RemoveMasquerade(ctx context.Context, c *plugin.Call, network string, subnets []*net.IPNet) error {
	c.Stage("masquerade")
	if removeAtOnce(ctx, c.ContainerID, network, subnets) && !usesNFT() {
		return nil
	}
	return ip.TeardownIPMasqForNetworks(subnets, network, c.IfName, c.ContainerID)
}

// removeAtOnce removes the rules of iptables, and reports whether it could.
func removeAtOnce(ctx context.Context, container, network string, subnets []*net.IPNet) bool {
	chain := utils.FormatChainName(network, container)
	for _, v6 := range []bool{false, true} {
		if len(ofFamily(subnets, v6)) == 0 {
			continue
		}
		now, err := xtables.Read(ctx, v6, natTable)
		if err != nil {
			return false
		}
		if now.HasChain(chain) && now.Change(ctx, now.RemoveChain(chain, postrouting)) != nil {
			return false
		}
	}
	return true
}

// usesNFT reports whether a pod may have rules of the backend nftables.
func usesNFT() bool {
	conn, err := nftables.New()
	if err != nil {
		return true // the reference's way says what is wrong
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return true
	}
	for _, t := range tables {
		if t.Name == nftMasqTable {
			return true
		}
	}
	return false
}

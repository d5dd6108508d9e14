package podlink

import (
	"context"
	"errors"
	"fmt"
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
	// removalsTried is how often the removal of a chain is tried: the table may change after it was read.
	removalsTried = 3
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
	if (backend == nil || *backend == iptables) && addAtOnce(ctx, c, backend == nil, network, subnets) {
		return nil
	}
	if backend != nil && *backend != iptables || backend == nil && !xtables.Usable(ctx, c.Environ()) && utils.SupportsNFTables() {
		if backend == nil {
			other := "nftables"
			backend = &other
		}
		return ip.SetupIPMasqForNetworks(backend, subnets, network, c.IfName, c.ContainerID)
	}
	for _, subnet := range subnets {
		if err := addOneByOne(c, network, subnet); err != nil {
			return err
		}
	}
	return nil
}

// addOneByOne adds what there is not of the rules of one address.
func addOneByOne(c *plugin.Call, network string, subnet *net.IPNet) error {
	chain, inChain, jump := masqRules(c, network, subnet)
	ipt, err := xtables.Open(subnet.IP.To4() == nil)
	if err != nil {
		return fmt.Errorf("failed to locate iptables: %w", err)
	}
	if err := utils.EnsureChain(ipt, natTable, chain); err != nil {
		return err
	}
	for _, rule := range inChain {
		if err := ipt.AppendUnique(natTable, chain, rule...); err != nil {
			return err
		}
	}
	return ipt.AppendUnique(natTable, postrouting, jump...)
}

// masqRules are the chain of a pod, its rules for one address, and the rule that leads to it.
func masqRules(c *plugin.Call, network string, subnet *net.IPNet) (chain string, inChain [][]string, jump []string) {
	chain, comment := utils.FormatChainName(network, c.ContainerID), utils.FormatComment(network, c.ContainerID)
	rule := func(target string, words ...string) []string {
		return append(words, "-m", "comment", "--comment", comment, "-j", target)
	}
	multicast := "224.0.0.0/4"
	if subnet.IP.To4() == nil {
		multicast = "ff00::/8"
	}
	return chain, [][]string{rule("ACCEPT", "-d", subnet.String()), rule("MASQUERADE", "!", "-d", multicast)}, rule(chain, "-s", subnet.IP.String())
}

// addAtOnce adds the rules of a pod that has none, and reports whether it could. Without a
// backend in the configuration, the host's is iptables if there is one for IPv4.
func addAtOnce(ctx context.Context, c *plugin.Call, chosen bool, network string, subnets []*net.IPNet) bool {
	for _, v6 := range []bool{false, true} {
		own := ofFamily(subnets, v6)
		if len(own) == 0 && (v6 || !chosen) {
			continue
		}
		chain := utils.FormatChainName(network, c.ContainerID)
		now, err := xtables.Read(ctx, c.Environ(), v6, natTable, chain)
		if err != nil || now.HasChain(chain) {
			return false
		}
		if len(own) == 0 {
			continue
		}
		var rules [][]string
		var jumps []xtables.Command
		for _, s := range own {
			_, inChain, jump := masqRules(c, network, s)
			rules, jumps = append(rules, inChain...), append(jumps, xtables.Append(postrouting, jump))
		}
		if now.Change(ctx, append(xtables.NewChain(chain, rules), jumps...)) != nil {
			return false // one rule after the other completes what is there, or says what is wrong
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

// RemoveMasquerade removes the rules of both backends. It finds them by the names of the network and the pod: when a
// former DEL has removed the link and then failed, nobody knows the addresses any more.
func RemoveMasquerade(ctx context.Context, c *plugin.Call, network string) error {
	c.Stage("masquerade")
	chain := utils.FormatChainName(network, c.ContainerID)
	for _, v6 := range []bool{false, true} {
		if err := removeChain(ctx, c, v6, chain); err != nil {
			return err
		}
	}
	// Where the kernel cannot be asked, the reference's way says what is wrong.
	if has, err := xtables.InNFTables(nftables.TableFamilyINet, nftMasqTable); err == nil && !has {
		return nil
	}
	return ip.TeardownIPMasqForNetworks(nil, network, c.IfName, c.ContainerID)
}

// removeChain removes a chain of iptables and what leads to it, if the host has it.
func removeChain(ctx context.Context, c *plugin.Call, v6 bool, chain string) (err error) {
	for range removalsTried {
		var now *xtables.Table
		now, err = xtables.Read(ctx, c.Environ(), v6, natTable, chain, postrouting)
		switch {
		case ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case xtables.IsAbsent(err):
			return nil // a host without iptables, or without the family, has no chain
		case err != nil:
			return fmt.Errorf("could not look for the masquerade rules of the pod: %w", err)
		case !now.HasChain(chain):
			return nil
		}
		if err = now.Change(ctx, now.RemoveChain(chain, postrouting)); err == nil {
			return nil
		}
	}
	return err
}

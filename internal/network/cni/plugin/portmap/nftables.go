package portmap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"

	"github.com/google/nftables"
	"sigs.k8s.io/knftables"

	"github.com/berthrun/berth/internal/network/cni/plugin/xtables"
)

const (
	nftTable = "cni_hostport"
	// nftEntries is where packets to an address of the host itself go, and no others: a rule for
	// a port would take packets that the host forwards.
	nftEntries = "hostports_all"
	nftPorts   = "hostports"
	// nftOldPorts has rules of releases before 1.7. New ones are in nftPorts.
	nftOldPorts = "hostip_hostports"
	nftMasq     = "masquerading"
)

// nftablesRules are the rules of the reference, in its table. The comment of a rule is the pod's
// id.
type nftablesRules struct{}

func tableOf(v6 bool) (knftables.Interface, error) {
	if v6 {
		return knftables.New(knftables.IPv6Family, nftTable)
	}
	return knftables.New(knftables.IPv4Family, nftTable)
}

func (nftablesRules) forward(ctx context.Context, n *conf, pod net.IPNet) error {
	v6 := isV6(pod.IP)
	nft, err := tableOf(v6)
	if err != nil {
		return err
	}
	tx := nft.NewTransaction()
	n.addBase(tx, v6)
	family := "ip"
	if v6 {
		family = "ip6"
	}
	rule := func(chain string, words ...any) {
		tx.Add(&knftables.Rule{Chain: chain, Rule: knftables.Concat(words...), Comment: &n.container})
	}
	for _, m := range n.ports(v6) {
		words := []any{m.Protocol, "dport", m.HostPort, "dnat to", net.JoinHostPort(pod.IP.String(), strconv.Itoa(m.ContainerPort))}
		if m.HostIP != "" {
			words = append([]any{family, "daddr", m.HostIP}, words...)
		}
		rule(nftPorts, words...)
	}
	if n.snat {
		rule(nftMasq, family, "saddr", pod.IP, family, "daddr", pod.IP, "masquerade")
		if !v6 {
			rule(nftMasq, family, "saddr 127.0.0.1", family, "daddr", pod.IP, "masquerade")
		}
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("unable to set up nftables rules for port mappings: %w", err)
	}
	return nil
}

// addBase adds what all pods share, unless it is there.
func (n *conf) addBase(tx *knftables.Transaction, v6 bool) {
	comment := "CNI portmap plugin"
	tx.Add(&knftables.Table{Comment: &comment})
	for _, name := range []string{nftPorts, nftOldPorts, nftEntries} {
		tx.Add(&knftables.Chain{Name: name})
	}
	tx.Flush(&knftables.Chain{Name: nftEntries})
	for _, name := range []string{nftOldPorts, nftPorts} {
		tx.Add(&knftables.Rule{Chain: nftEntries, Rule: "jump " + name})
	}
	nat := knftables.NATType
	hook := func(name string, hook knftables.BaseChainHook, priority knftables.BaseChainPriority) {
		tx.Add(&knftables.Chain{Name: name, Type: &nat, Hook: &hook, Priority: &priority})
	}
	for _, at := range []knftables.BaseChainHook{knftables.PreroutingHook, knftables.OutputHook} {
		name := string(at) // the chains have the names of their hooks
		hook(name, at, knftables.DNATPriority)
		tx.Flush(&knftables.Chain{Name: name})
		tx.Add(&knftables.Rule{Chain: name, Rule: knftables.Concat(n.conditions(v6), "fib daddr type local", "jump", nftEntries)})
	}
	if n.snat {
		hook(nftMasq, knftables.PostroutingHook, knftables.SNATPriority)
	}
}

func (nftablesRules) check(ctx context.Context, n *conf, pod net.IPNet) error {
	v6 := isV6(pod.IP)
	nft, err := tableOf(v6)
	if err != nil {
		return err
	}
	masq := 0
	switch {
	case n.snat && v6:
		masq = 1
	case n.snat:
		masq = 2
	}
	for _, want := range []struct {
		chain string
		rules int
	}{{nftPorts, len(n.ports(v6))}, {nftMasq, masq}} {
		if want.rules == 0 {
			continue
		}
		own, err := rulesOf(ctx, nft, want.chain, n.container)
		if err != nil {
			return err
		}
		if len(own) < want.rules {
			return fmt.Errorf("missing hostport rules in %q chain", want.chain)
		}
	}
	return nil
}

// rulesOf returns the rules of a pod in a chain.
func rulesOf(ctx context.Context, nft knftables.Interface, chain, pod string) ([]*knftables.Rule, error) {
	all, err := nft.ListRules(ctx, chain)
	if err != nil {
		return nil, err
	}
	var own []*knftables.Rule
	for _, r := range all {
		if r.Comment != nil && *r.Comment == pod {
			own = append(own, r)
		}
	}
	return own, nil
}

func (nftablesRules) remove(ctx context.Context, n *conf) error {
	for _, v6 := range []bool{false, true} {
		nft, err := tableOf(v6)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			family := nftables.TableFamilyIPv4
			if v6 {
				family = nftables.TableFamilyIPv6
			}
			if has, fault := xtables.InNFTables(family, nftTable); has || fault != nil {
				return fmt.Errorf("could not look for the rules of the pod's ports: %w", errors.Join(err, fault))
			}
			continue // a kernel that lacks the family has no rules of it
		}
		tx := nft.NewTransaction()
		for _, chain := range []string{nftPorts, nftOldPorts, nftMasq} {
			own, err := rulesOf(ctx, nft, chain, n.container)
			if knftables.IsNotFound(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("could not list rules in table %s: %w", nftTable, err)
			}
			for _, r := range own {
				tx.Delete(r)
			}
		}
		if err := nft.Run(ctx, tx); err != nil {
			return fmt.Errorf("error deleting nftables rules: %w", err)
		}
	}
	return nil
}

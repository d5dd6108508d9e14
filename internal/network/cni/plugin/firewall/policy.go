package firewall

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/utils"
)

// The ingress policies. sameBridge keeps bridges apart, isolated also the ports of one.
const (
	open       = "open"
	sameBridge = "same-bridge"
	isolated   = "isolated"
)

// The chains of the policies: the first has what comes from a bridge and leaves by another link,
// the second drops of that what enters a bridge.
const (
	stage1 = "CNI-ISOLATION-STAGE-1"
	stage2 = "CNI-ISOLATION-STAGE-2"
)

func (n *conf) checkPolicy() error {
	switch n.IngressPolicy {
	case "", open, sameBridge, isolated:
		return nil
	default:
		return fmt.Errorf("unknown ingress policy: %q", n.IngressPolicy)
	}
}

// addPolicy adds the rules of the bridge, the first interface of the result before. They stay:
// other pods of the bridge need them.
func (n *conf) addPolicy(families []*family) error {
	if err := n.checkPolicy(); err != nil {
		return err
	}
	if n.IngressPolicy == "" || n.IngressPolicy == open {
		return nil
	}
	interfaces := n.previous.Interfaces
	switch {
	case len(interfaces) == 0:
		return fmt.Errorf("interface needs to be set for ingress policy %q, make sure to chain \"firewall\" plugin with \"bridge\"", n.IngressPolicy)
	case interfaces[0] == nil:
		return errors.New("got nil interface")
	case interfaces[0].Name == "":
		return errors.New("got empty bridge name")
	}
	for _, f := range families {
		if len(f.addresses) == 0 {
			continue
		}
		if err := n.isolate(f, interfaces[0].Name); err != nil {
			return err
		}
	}
	return nil
}

// isolate adds the rules of a bridge to one family.
func (n *conf) isolate(f *family, bridge string) error {
	for _, name := range []string{stage1, stage2} {
		if err := utils.EnsureChain(f.IPTables, table, name); err != nil {
			return err
		}
	}
	commented := func(policy string, words ...string) []string {
		return append(words, "-m", "comment", "--comment", "CNI firewall plugin rules (ingressPolicy: "+policy+")")
	}
	const both = sameBridge + "|" + isolated
	type rule struct {
		chain string
		first bool
		words []string
	}
	rules := []rule{
		{forward, true, commented(both, "-j", stage1)}, // before the chain that accepts
		{stage1, true, commented(n.IngressPolicy, "-i", bridge, "!", "-o", bridge, "-j", stage2)},
	}
	if n.IngressPolicy == isolated {
		rules = append(rules, rule{stage1, true, commented(n.IngressPolicy, "-i", bridge, "-o", bridge, "-j", "DROP")})
	}
	rules = append(rules,
		rule{stage1, false, commented(both, "-j", "RETURN")},
		rule{stage2, true, commented(both, "-o", bridge, "-j", "DROP")},
		rule{stage2, false, commented(both, "-j", "RETURN")})
	for _, r := range rules {
		if err := utils.InsertUnique(f.IPTables, table, r.chain, r.first, r.words); err != nil {
			return err
		}
	}
	return nil
}

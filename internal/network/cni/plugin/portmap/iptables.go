package portmap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/coreos/go-iptables/iptables"

	"github.com/berthrun/berth/internal/network/cni/plugin/xtables"
)

const (
	table        = "nat"
	dnatChain    = "CNI-HOSTPORT-DNAT"
	setMarkChain = "CNI-HOSTPORT-SETMARK"
	masqChain    = "CNI-HOSTPORT-MASQ"
	oldSNATChain = "CNI-HOSTPORT-SNAT" // of releases before 0.8
	portsInRule  = 15                  // that the match multiport takes
	commentMost  = 255
)

// iptablesRules are the rules of the reference, in its chains: both find each other's.
//
// A chain for each pod has three rules for each port: two mark what has to be masqueraded, which
// the pod's own packets to itself and those of the host's loopback are; the third changes the
// destination.
type iptablesRules struct{}

// chain is one chain with its rules, and the rules of other chains that lead to it.
type chain struct {
	name    string
	rules   [][]string
	from    []string
	entries [][]string // without the target
	first   bool       // entries come before all others
}

// usable returns the iptables of a family, if the kernel has it.
func usable(v6 bool) (*iptables.IPTables, error) {
	ipt, err := xtables.Open(v6)
	if err != nil {
		return nil, err
	}
	if _, err := ipt.List(table, "OUTPUT"); err != nil {
		return nil, err
	}
	return ipt, nil
}

func (iptablesRules) forward(ctx context.Context, n *conf, pod net.IPNet) error {
	v6 := isV6(pod.IP)
	own := n.podChain(pod)
	shared := []chain{{
		name: dnatChain, from: []string{"PREROUTING", "OUTPUT"},
		entries: [][]string{{"-m", "addrtype", "--dst-type", "LOCAL"}},
	}}
	if n.snat && n.ExternalSetMarkChain == nil {
		shared = append(markChains(n.mark), shared...)
	}
	if addAtOnce(ctx, n, v6, append(slices.Clone(shared), *own)) {
		return nil
	}
	// One after the other: a pod that is attached again, chains of which something is missing, what iptables refuses.
	ipt, err := xtables.Open(v6)
	if err != nil {
		return fmt.Errorf("failed to open iptables: %w", err)
	}
	for _, c := range shared {
		if err := c.ensure(ipt); err != nil && c.name == dnatChain {
			return fmt.Errorf("failed to create top-level DNAT chain: %w", err)
		} else if err != nil {
			return fmt.Errorf("unable to create chain %s: %w", setMarkChain, err)
		}
	}
	if err := own.ensure(ipt); err != nil {
		return fmt.Errorf("unable to setup DNAT: %w", err)
	}
	return nil
}

// addAtOnce adds the chains that there are not, and reports whether it could. The last one, the pod's own, must be new.
func addAtOnce(ctx context.Context, n *conf, v6 bool, chains []chain) bool {
	var names []string
	for _, c := range chains {
		names = append(append(names, c.name), c.from...)
	}
	now, err := xtables.Read(ctx, n.environ, v6, table, names...)
	if err != nil || now.HasChain(chains[len(chains)-1].name) {
		return false
	}
	var commands []xtables.Command
	for _, c := range chains {
		switch {
		case !now.HasChain(c.name):
			commands = append(commands, c.add()...)
		case !c.isIn(now):
			return false
		}
	}
	return now.Change(ctx, commands) == nil
}

func (iptablesRules) check(_ context.Context, n *conf, pod net.IPNet) error {
	family := "4"
	if isV6(pod.IP) {
		family = "6"
	}
	ipt, err := usable(isV6(pod.IP))
	if err != nil {
		return fmt.Errorf("neither iptables nor ip6tables is usable, (IPv%s) %w", family, err)
	}
	if err := n.podChain(pod).check(ipt); err != nil {
		return fmt.Errorf("could not check ipv%s dnat: %w", family, err)
	}
	return nil
}

func (iptablesRules) remove(ctx context.Context, n *conf) error {
	own := chain{name: n.chainName("DN-"), from: []string{dnatChain}}
	old := chain{name: n.chainName("SN-"), from: []string{oldSNATChain}}
	var faults []error
	for _, v6 := range []bool{false, true} {
		now, err := xtables.Read(ctx, n.environ, v6, table, own.name, dnatChain, old.name, oldSNATChain)
		if xtables.IsAbsent(err) {
			faults = append(faults, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("could not look for the rules of the pod's ports: %w", err)
		}
		if err := own.remove(ctx, now, v6); err != nil {
			family := "4"
			if v6 {
				family = "6"
			}
			return fmt.Errorf("could not teardown ipv%s dnat: %w", family, err)
		}
		_ = old.remove(ctx, now, v6) // of a release that nobody may have run here
	}
	if len(faults) == 2 {
		return fmt.Errorf("neither iptables nor ip6tables is usable: %w", errors.Join(faults...))
	}
	return nil
}

func (n *conf) chainName(prefix string) string {
	return utils.MustFormatChainNameWithPrefix(n.Name, n.container, prefix)
}

// podChain is the chain of a pod, for one address.
func (n *conf) podChain(pod net.IPNet) *chain {
	v6 := isV6(pod.IP)
	c := &chain{name: n.chainName("DN-"), from: []string{dnatChain}}
	comment := fmt.Sprintf(`dnat name: "%s" id: "%s"`, n.Name, n.container)
	if len(comment) > commentMost {
		comment = comment[:commentMost-2] + "..."
	}
	protocols, of := byProtocol(n.RuntimeConfig.Ports)
	for _, protocol := range protocols {
		for ports := range slices.Chunk(of[protocol], portsInRule) {
			var words []string
			for _, p := range ports {
				words = append(words, strconv.Itoa(p))
			}
			entry := []string{"-m", "comment", "--comment", comment, "-m", "multiport", "-p", protocol, "--destination-ports", strings.Join(words, ",")}
			c.entries = append(c.entries, append(entry, n.conditions(v6)...))
		}
	}
	marks, anywhere := setMarkChain, "0.0.0.0/0"
	if n.ExternalSetMarkChain != nil {
		marks = *n.ExternalSetMarkChain
	}
	if v6 {
		anywhere = "::/0"
	}
	for _, m := range n.ports(v6) {
		match := []string{"-p", m.Protocol, "--dport", strconv.Itoa(m.HostPort)}
		if m.HostIP != "" {
			match = append(match, "-d", m.HostIP)
		}
		rule := func(words ...string) { c.rules = append(c.rules, append(slices.Clone(match), words...)) }
		switch {
		case n.snat && n.MasqAll:
			rule("-s", anywhere, "-j", marks)
		case n.snat:
			rule("-s", pod.String(), "-j", marks)
			if !v6 {
				rule("-s", "127.0.0.1", "-j", marks)
			}
		}
		rule("-j", "DNAT", "--to-destination", net.JoinHostPort(pod.IP.String(), strconv.Itoa(m.ContainerPort)))
	}
	return c
}

// markChains are those that mark packets, and masquerade what is marked.
func markChains(bit int) []chain {
	mark := fmt.Sprintf("%#x/%#x", 1<<uint(bit), 1<<uint(bit))
	return []chain{
		{name: setMarkChain, rules: [][]string{{"-m", "comment", "--comment", "CNI portfwd masquerade mark", "-j", "MARK", "--set-xmark", mark}}},
		{
			name: masqChain, rules: [][]string{{"-m", "mark", "--mark", mark, "-j", "MASQUERADE"}},
			from: []string{"POSTROUTING"}, entries: [][]string{{"-m", "comment", "--comment", "CNI portfwd requiring masquerade"}},
			first: true, // else the masquerade of a pod's link, which accepts packets to its subnet, comes before it
		},
	}
}

// add are the commands for the whole chain.
func (c *chain) add() []xtables.Command {
	commands := xtables.NewChain(c.name, c.rules)
	lead := xtables.Append
	if c.first {
		lead = xtables.Insert
	}
	for _, from := range c.from {
		for _, entry := range c.entries {
			commands = append(commands, lead(from, append(slices.Clone(entry), "-j", c.name)))
		}
	}
	return commands
}

// ensure makes what there is not of the chain.
func (c *chain) ensure(ipt *iptables.IPTables) error {
	if err := utils.EnsureChain(ipt, table, c.name); err != nil {
		return err
	}
	for _, rule := range c.rules {
		if err := utils.InsertUnique(ipt, table, c.name, false, rule); err != nil {
			return err
		}
	}
	for _, from := range c.from {
		for _, entry := range c.entries {
			if err := utils.InsertUnique(ipt, table, from, c.first, append(slices.Clone(entry), "-j", c.name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// check is an error if something of the chain is missing.
func (c *chain) check(ipt *iptables.IPTables) error {
	exists, err := ipt.ChainExists(table, c.name)
	if err != nil {
		return err
	}
	if !exists {
		return fmt.Errorf("chain %s not found in iptables table %s", c.name, table)
	}
	for _, rule := range c.rules {
		if ok, err := ipt.Exists(table, c.name, rule...); err != nil || !ok {
			return fmt.Errorf("rule %s in chain %s not found in table %s", c.rules, c.name, table)
		}
	}
	for _, from := range c.from {
		for _, entry := range c.entries {
			if ok, err := ipt.Exists(table, from, append(slices.Clone(entry), "-j", c.name)...); err != nil || !ok {
				return fmt.Errorf("rule %s in chain %s not found in table %s", c.entries, from, table)
			}
		}
	}
	return nil
}

// isIn reports whether a table has all of the chain.
func (c *chain) isIn(now *xtables.Table) bool {
	has := func(in string, words []string) bool { return now.HasRule(in, words) }
	if !now.HasChain(c.name) || slices.ContainsFunc(c.rules, func(rule []string) bool { return !has(c.name, rule) }) {
		return false
	}
	for _, from := range c.from {
		for _, entry := range c.entries {
			if !has(from, append(slices.Clone(entry), "-j", c.name)) {
				return false
			}
		}
	}
	return true
}

// remove removes the chain and all rules that lead to it. Nil when there is none.
func (c *chain) remove(ctx context.Context, now *xtables.Table, v6 bool) error {
	if !now.HasChain(c.name) || now.Change(ctx, now.RemoveChain(c.name, c.from...)) == nil {
		return nil
	}
	// The table has changed in the meantime.
	ipt, err := xtables.Open(v6)
	if err != nil {
		return err
	}
	for _, from := range c.from {
		if err := removeJumps(ipt, from, c.name); err != nil {
			return err
		}
	}
	return ipt.ClearAndDeleteChain(table, c.name)
}

// removeJumps removes the rules of a chain that lead to another. Nothing for a chain that does
// not exist.
func removeJumps(ipt *iptables.IPTables, from, to string) error {
	exists, err := ipt.ChainExists(table, from)
	if err != nil || !exists {
		return err
	}
	rules, err := ipt.List(table, from)
	if err != nil {
		return err
	}
	for _, rule := range rules {
		if !strings.HasSuffix(rule, "-j "+to) {
			continue
		}
		words, err := wordsOf(rule)
		if err != nil {
			return fmt.Errorf("error parsing iptables rule: %s: %w", rule, err)
		}
		if err := utils.DeleteRule(ipt, table, from, words[min(2, len(words)):]...); err != nil { // without -A and the chain
			return err
		}
	}
	return nil
}

// wordsOf splits a rule as iptables lists it: words with other characters than letters are in
// double quotes, where a backslash takes the next character as it is.
func wordsOf(rule string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quoted, escaped := false, false, false
	for _, r := range rule {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\':
			inWord, escaped = true, true
		case r == '"':
			inWord, quoted = true, !quoted
		case r == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			inWord = true
			word.WriteRune(r)
		}
	}
	if quoted || escaped {
		return nil, errors.New("a quotation has no end")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

//go:build integration

package xtables

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysnet"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// inNetNS runs fn in a network namespace of its own, on a host whose iptables is of the variant that this package knows.
func inNetNS(t *testing.T, fn func()) {
	t.Helper()
	require.Root(t)
	for _, v6 := range []bool{false, true} {
		require.NFTables(t, isNFTables(t.Context(), os.Environ(), v6))
	}
	netns := filepath.Join(t.TempDir(), "netns")
	if err := sysns.NewNetNS(netns); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sysns.RemoveNetNS(netns); err != nil {
			t.Error(err)
		}
	}()
	if err := sysns.InNetNS(netns, func() error { fn(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// command runs a program and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func natOf(v6 bool) place { return place{v6, "nat", os.Environ()} }

func read(t *testing.T, v6 bool, chains ...string) *kernel {
	t.Helper()
	k, err := readKernel(natOf(v6), chains)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// commands are rules of all forms that the plugins of CNI write.
func commands(v6 bool) []Command {
	pod, subnet, all, other, multicast := "10.61.0.2", "10.61.0.0/24", "0.0.0.0/0", "10.61.0.77/23", "224.0.0.0/4"
	if v6 {
		pod, subnet, all, other, multicast = "fd61::2", "fd61::/64", "::/0", "fd61::7/63", "ff00::/8"
	}
	comment := []string{"-m", "comment", "--comment", `name: "net" id: "a\b"`}
	words := func(text string, more ...string) []string { return append(strings.Fields(text), more...) }
	to := "[" + pod + "]:80"
	if !v6 {
		to = pod + ":80"
	}
	commented := func(text, target string) []string { return slices.Concat(words(text), comment, words(target)) }
	return slices.Concat(
		NewChain("MARKS", [][]string{commented("", "-j MARK --set-xmark 0x2000/0x2000"), words("-j MARK --set-xmark 0x80000000/0x80000000")}),
		NewChain("MASQ", [][]string{
			commented("-d "+subnet, "-j ACCEPT"), commented("! -d "+multicast, "-j MASQUERADE"), words("-s " + other + " ! -d " + other + " -j RETURN"),
			words("-m mark --mark 0x2000/0x2000 -j MASQUERADE"), words("-m mark --mark 0x1/0xffffffff -j MASQUERADE"), words("-s " + all + " -j ACCEPT"),
		}),
		NewChain("DN", [][]string{
			words("-p tcp --dport 8080 -s " + subnet + " -j MARKS"), words("-p tcp --dport 8080 -j DNAT --to-destination " + to),
			words("-p udp --dport 53 -d " + pod + " -j DNAT --to-destination " + to), words("-p sctp --dport 9 -j DNAT --to-destination " + to),
			words("-p sctp --dport 65535 -d " + pod + " -s " + all + " -j MARKS"),
		}),
		NewChain("PORTS", [][]string{
			commented("", "-m multiport -p tcp --destination-ports 8080,8081,65535 -j DN"), commented("", "-m multiport -p sctp --destination-ports 9 -j DN"),
			commented("", "-m multiport -p udp --destination-ports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 -s "+subnet+" -j DN"),
		}),
		[]Command{
			Append("POSTROUTING", commented("-s "+pod, "-j MASQ")), Insert("POSTROUTING", commented("", "-j MASQ")),
			Append("PREROUTING", words("-m addrtype --dst-type LOCAL -j PORTS")), Append("OUTPUT", words("-m addrtype --dst-type LOCAL -j PORTS")),
		})
}

// chainsOf are the chains of commands.
func chainsOf(commands []Command) []string {
	var chains []string
	for _, c := range commands {
		chains = append(chains, c.chain)
	}
	slices.Sort(chains)
	return slices.Compact(chains)
}

// state describes a table of the calling thread's network namespace, to the byte.
func state(t *testing.T, v6 bool, chains []string) string {
	t.Helper()
	p := natOf(v6)
	all := command(t, p.name(""), "-t", "nat", "-S") + command(t, p.name("-save"), "-t", "nat") + command(t, "nft", "list", "ruleset")
	all = strings.Join(slices.DeleteFunc(strings.Split(all, "\n"), func(line string) bool { return strings.HasPrefix(line, "#") }), "\n")
	k := read(t, v6, chains...)
	for _, chain := range chains {
		for _, r := range k.chains[chain] {
			all += fmt.Sprintf("%s %x\n", chain, r.expressions)
		}
	}
	return all
}

// TestRulesAreThoseOfThePrograms: tables that a program writes and those that this package writes are the same, to the
// byte. Each finds and removes the other's.
func TestRulesAreThoseOfThePrograms(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		list := commands(v6)
		chains := chainsOf(list)
		var want, got string
		inNetNS(t, func() {
			if err := natOf(v6).change(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			want = state(t, v6, chains)
			k := read(t, v6, chains...)
			for _, c := range list {
				if c.verb == newChain && !k.hasChain(c.chain) || c.verb != newChain && !k.hasRule(c.chain, c.rule) {
					t.Errorf("%+v of the program is not found", c)
				}
			}
			removeAll(t, k)
		})
		inNetNS(t, func() {
			k := read(t, v6, chains...)
			requests, err := k.requests(openSocket(t), list)
			if err != nil || len(requests) != 1+len(list)+3 { // the table, and three built-in chains
				t.Fatalf("%d requests for %d commands: %v", len(requests), len(list), err)
			}
			if err := k.change(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			got = state(t, v6, chains)
			for _, c := range list {
				if c.verb != newChain {
					command(t, natOf(v6).name(""), slices.Concat([]string{"-t", "nat", "-C", c.chain}, c.rule)...)
				}
			}
			for _, c := range list {
				if c.verb != newChain {
					command(t, natOf(v6).name(""), slices.Concat([]string{"-t", "nat", "-D", c.chain}, c.rule)...)
				}
			}
			for _, c := range slices.Backward(list) {
				if c.verb == newChain {
					command(t, natOf(v6).name(""), "-t", "nat", "-X", c.chain)
				}
			}
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("IPv6 %t (-program +netlink):\n%s", v6, diff)
		}
	}
}

func openSocket(t *testing.T) *sysnet.Netlink {
	t.Helper()
	socket, err := sysnet.OpenNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}

// removeAll removes the chains of commands, and checks that nothing is left.
func removeAll(t *testing.T, k *kernel) {
	t.Helper()
	table := &Table{k}
	var list []Command
	for _, c := range [][]string{{"MASQ", "POSTROUTING"}, {"PORTS", "PREROUTING", "OUTPUT"}, {"DN", "PORTS"}, {"MARKS", "DN"}} {
		list = append(list, table.RemoveChain(c[0], c[1:]...)...)
	}
	// The flush of a chain before has removed these.
	list = slices.DeleteFunc(list, func(c Command) bool { return c.verb == remove && (c.chain == "PORTS" || c.chain == "DN") })
	if err := table.Change(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if left := command(t, k.name("-save"), "-t", "nat"); strings.Contains(left, "-A") || strings.Contains(left, " - ") {
		t.Errorf("left:\n%s", left)
	}
}

// TestOlderFormsAreFound: older versions of iptables compare ports and marks with matches.
func TestOlderFormsAreFound(t *testing.T) {
	inNetNS(t, func() {
		k := read(t, false)
		rules := [][]string{
			strings.Fields("-m mark --mark 0x2000/0x2000 -j MASQUERADE"), strings.Fields("-p tcp --dport 80 -j ACCEPT"), strings.Fields("-p udp --dport 80 -j ACCEPT"),
		}
		requests, err := k.requests(openSocket(t), NewChain("OLD", nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range rules {
			r, ok := encode(words, false, compat)
			if !ok {
				t.Fatal(words)
			}
			request, err := k.addRule(Append("OLD", words), r)
			if err != nil {
				t.Fatal(err)
			}
			requests = append(requests, request)
		}
		if err := openSocket(t).ChangeNftables(requests...); err != nil {
			t.Fatal(err)
		}
		now := read(t, false, "OLD")
		for _, words := range rules {
			if !now.hasRule("OLD", words) {
				t.Errorf("%q is not found", words)
			}
			command(t, "iptables", slices.Concat([]string{"-t", "nat", "-C", "OLD"}, words)...)
		}
		if now.hasRule("OLD", strings.Fields("-p tcp --dport 81 -j ACCEPT")) {
			t.Error("a rule that there is not is found")
		}
	})
}

// TestUnknownRules: rules of other programs are in nobody's way, and what this package cannot write is for the program.
func TestUnknownRules(t *testing.T) {
	inNetNS(t, func() {
		jump := strings.Fields("-s 10.61.0.2 -j OWN")
		if err := read(t, false).change(t.Context(), append(NewChain("OWN", nil), Append("POSTROUTING", jump))); err != nil {
			t.Fatal(err)
		}
		command(t, "nft", "insert", "rule", "ip", "nat", "POSTROUTING", "ct", "state", "established", "counter", "return")
		command(t, "nft", "add", "rule", "ip", "nat", "POSTROUTING", "ip", "saddr", "10.61.0.2", "ct", "state", "new", "jump", "OWN")
		now := read(t, false, "OWN", "POSTROUTING")
		if !now.hasRule("POSTROUTING", jump) || now.hasRule("POSTROUTING", strings.Fields("-s 10.61.0.2 -j RETURN")) {
			t.Error("an unknown rule changes what is found")
		}
		if now.lists("POSTROUTING") || !now.lists("OWN") {
			t.Error("iptables can list OWN alone")
		}
		if got := now.jumps("POSTROUTING", "OWN"); len(got) != 2 {
			t.Errorf("rules that lead to OWN: %+v", got)
		}
		if err := now.change(t.Context(), (&Table{now}).RemoveChain("OWN", "POSTROUTING")); err != nil {
			t.Fatal(err)
		}
		command(t, "nft", "flush", "chain", "ip", "nat", "POSTROUTING")

		unknown := strings.Fields("-p tcp -m tcp --dport 22 --syn -j ACCEPT")
		if err := now.change(t.Context(), NewChain("OTHER", [][]string{unknown})); err != nil {
			t.Error(err)
		}
		command(t, "iptables", slices.Concat([]string{"-t", "nat", "-C", "OTHER"}, unknown)...)
		if read(t, false, "OTHER").hasRule("OTHER", unknown) {
			t.Error("a rule of an unknown form is found")
		}
		var refused *sysnet.NetlinkError
		if err := now.change(t.Context(), NewChain("LEADS", [][]string{{"-j", "NONESUCH"}})); !errors.As(err, &refused) || read(t, false, "LEADS").hasChain("LEADS") {
			t.Errorf("a rule that leads nowhere: %v", err)
		}
		if err := now.change(t.Context(), NewChain("OTHER", nil)); !errors.Is(err, unix.EEXIST) {
			t.Errorf("a chain that exists: %v", err)
		}
	})
}

// TestForeignChains: a chain with a name of iptables and another place is not written to, and is no answer.
func TestForeignChains(t *testing.T) {
	inNetNS(t, func() {
		command(t, "nft", "add", "table", "ip", "nat")
		command(t, "nft", "add", "chain", "ip", "nat", "POSTROUTING", "{ type nat hook postrouting priority 99; }")
		if _, err := readKernel(natOf(false), []string{"POSTROUTING"}); !errors.Is(err, errForeign) {
			t.Errorf("%v, want that the chain is not that of iptables", err)
		}
		if _, err := read(t, false).requests(openSocket(t), []Command{Append("POSTROUTING", []string{"-j", "ACCEPT"})}); !errors.Is(err, errForeign) {
			t.Errorf("%v, want that the chain is not that of iptables", err)
		}
	})
}

// TestLegacyTables: while the host has tables of the legacy variant, the programs run.
func TestLegacyTables(t *testing.T) {
	inNetNS(t, func() {
		require.LegacyTables(t, exec.Command("iptables-legacy", "-t", "nat", "-S").Run())
		if isNFTables(t.Context(), os.Environ(), false) {
			t.Error("the legacy table is not seen")
		}
		if !isNFTables(t.Context(), os.Environ(), true) {
			t.Error("the table of one family is in the way of the other")
		}
		table, err := Read(t.Context(), os.Environ(), false, "nat", "OWN")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := table.source.(*listing); !ok {
			t.Errorf("read by %T", table.source)
		}
	})
}

// TestAtTheSameTime: transactions of several pods, the first ones of the host, do not fail each other.
func TestAtTheSameTime(t *testing.T) {
	inNetNS(t, func() {
		const pods = 16
		netns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		defer netns.Close()
		var all sync.WaitGroup
		for i := range pods {
			all.Go(func() {
				err := sysns.InNetNS(fmt.Sprintf("/proc/self/fd/%d", netns.Fd()), func() error {
					chain := fmt.Sprintf("POD-%d", i)
					table, err := Read(t.Context(), os.Environ(), false, "nat", chain)
					if err != nil {
						return err
					}
					return table.Change(t.Context(), append(NewChain(chain, [][]string{{"-j", "ACCEPT"}}), Append("POSTROUTING", []string{"-j", chain})))
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := strings.Count(command(t, "iptables-save", "-t", "nat"), "-A POSTROUTING -j POD-"); got != pods {
			t.Errorf("%d rules of %d pods", got, pods)
		}
	})
}

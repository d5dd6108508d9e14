//go:build integration

package builtin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network"
)

// TestFlushedRuleset: another program flushes the host's nftables ruleset, or changes the rules of
// berth. berth repairs them without a request that would notice it.
func TestFlushedRuleset(t *testing.T) {
	l := newLab(t)
	other := l.outside()
	n := l.open(l.config())
	web := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	l.attach(n, web)
	l.serve(web.NetNS, 80, "web")
	l.wantAnswer(other, "tcp", "192.0.2.1", 8080, "web", "")
	ruleset := func() string { // berth adds its sets in any order
		return strings.Join(slices.Sorted(strings.Lines(l.run(l.host, "nft", "list", "ruleset"))), "")
	}
	want := ruleset()
	for _, change := range []string{
		"flush ruleset",
		"flush map inet berth ports4",
		"flush table bridge berth",
	} {
		l.run(l.host, "nft", strings.Fields(change)...)
		l.eventually("nft "+change+" is repaired", func() bool { return ruleset() == want }, ruleset)
		l.wantAnswer(other, "tcp", "192.0.2.1", 8080, "web", "")
	}
	// A change of another program is seen when a change of berth follows at once.
	l.run(l.host, "nft", "flush", "chain", "inet", "berth", "postrouting")
	l.attach(n, l.pod(network.Port{Protocol: "udp", HostPort: 53, ContainerPort: 53}))
	l.eventually("the chain postrouting is repaired", func() bool { return strings.Contains(ruleset(), "masquerade") }, ruleset)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

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
	ruleset := l.ruleset
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

// ruleset returns the rules of the host. berth adds its sets in any order, so the lines are sorted.
func (l *lab) ruleset() string {
	return strings.Join(slices.Sorted(strings.Lines(l.run(l.host, "nft", "list", "ruleset"))), "")
}

// TestFlushedWhileRepaired: another program changes the rules at the moment in which berth repairs
// them, or compares them.
func TestFlushedWhileRepaired(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	l.attach(n, l.pod())
	want := l.ruleset()
	const rounds = 20
	for round := range rounds {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 5 {
				l.run(l.host, "nft", "flush", "table", "bridge", "berth")
			}
		}()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			if err := n.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := l.ruleset(); got != want {
			t.Fatalf("round %d: not repaired:\n%s", round, got)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
